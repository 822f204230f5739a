package event

// fewEvents is up to how many sorting by insertion is faster.
const fewEvents = 24

// sort puts the open leaf in order of time. Events of one time stay in the order in which they came.
func (q *Queue) sort() {
	if q.shift == 0 {
		return // a leaf is one time
	}
	if len(q.leaf) <= fewEvents {
		for i := 1; i < len(q.leaf); i++ {
			e, at := q.leaf[i], i
			for ; at > 0 && q.leaf[at-1].low() > e.low(); at-- {
				q.leaf[at] = q.leaf[at-1]
			}
			q.leaf[at] = e
		}
		return
	}
	for shift := uint(0); shift < q.shift; shift += digit {
		q.countingSort(shift)
	}
}

// countingSort orders the open leaf by one digit of time, stably.
func (q *Queue) countingSort(shift uint) {
	var place [1 << digit]uint32
	for _, e := range q.leaf {
		place[uint8(e.low()>>shift)]++
	}
	sum := uint32(0)
	for i, count := range place {
		place[i] = sum
		sum += count
	}
	if cap(q.spare) < len(q.leaf) {
		q.spare = make([]Event, cap(q.leaf))
	}
	sorted := q.spare[:len(q.leaf)]
	for _, e := range q.leaf {
		slot := uint8(e.low() >> shift)
		sorted[place[slot]] = e
		place[slot]++
	}
	q.leaf, q.spare = sorted, q.leaf
}
