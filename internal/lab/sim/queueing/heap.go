package queueing

// job is somebody's request at a station.
type job struct {
	done uint64 // virtual time of the station
	id   uint32
}

// heap has the jobs of a station, the one that is done first on top. The order of those that are done at the same time depends on nothing
// but the order in which all were pushed.
type heap struct{ jobs []job }

func (h *heap) len() int { return len(h.jobs) }

func (h *heap) first() job { return h.jobs[0] }

func (h *heap) push(j job) {
	h.jobs = append(h.jobs, j)
	at := len(h.jobs) - 1
	for at > 0 {
		parent := (at - 1) / 2
		if h.jobs[parent].done <= j.done {
			break
		}
		h.jobs[at] = h.jobs[parent]
		at = parent
	}
	h.jobs[at] = j
}

func (h *heap) pop() job {
	top := h.jobs[0]
	last := h.jobs[len(h.jobs)-1]
	h.jobs = h.jobs[:len(h.jobs)-1]
	if len(h.jobs) > 0 {
		h.sink(last)
	}
	return top
}

// sink puts a job where the top was.
func (h *heap) sink(j job) {
	at := 0
	for {
		child := 2*at + 1
		if child >= len(h.jobs) {
			break
		}
		if child+1 < len(h.jobs) && h.jobs[child+1].done < h.jobs[child].done {
			child++
		}
		if h.jobs[child].done >= j.done {
			break
		}
		h.jobs[at] = h.jobs[child]
		at = child
	}
	h.jobs[at] = j
}
