package event

import "math/bits"

// Implementation constants.
const (
	fewEvents  = 12  // up to how many sorting by insertion is faster
	manyEvents = 512 // from how many on it is not worth while even if little is left to do
	maxSorted  = 10  // bits of time that a counting sort looks at, at most
)

// sort puts the open leaf in order of time. Events of one time stay in the order in which they came.
func (q *Queue) sort() {
	if len(q.leaf) >= manyEvents {
		passes := (q.shift + maxSorted - 1) / maxSorted
		for shift := uint(0); passes > 0; passes-- {
			digit := (q.shift - shift) / passes
			q.countingSort(shift, digit)
			shift += digit
		}
		return
	}
	if len(q.leaf) > fewEvents {
		digit := min(uint(bits.Len(uint(len(q.leaf))))+1, maxSorted, q.shift)
		q.countingSort(q.shift-digit, digit)
	}
	insertionSort(q.leaf)
}

func insertionSort(events []Event) {
	for i := 1; i < len(events); i++ {
		e, at := events[i], i
		for ; at > 0 && events[at-1].low() > e.low(); at-- {
			events[at] = events[at-1]
		}
		events[at] = e
	}
}

// countingSort orders the open leaf by some bits of time, stably.
func (q *Queue) countingSort(shift, digit uint) {
	var place [1 << maxSorted]uint32
	mask := uint32(1)<<min(digit, maxSorted) - 1
	for _, e := range q.leaf {
		place[e.low()>>shift&mask]++
	}
	sum := uint32(0)
	for i, count := range place[:mask+1] {
		place[i] = sum
		sum += count
	}
	if cap(q.spare) < len(q.leaf) {
		q.spare = make([]Event, cap(q.leaf))
	}
	sorted := q.spare[:len(q.leaf)]
	for _, e := range q.leaf {
		slot := e.low() >> shift & mask
		sorted[place[slot]] = e
		place[slot]++
	}
	q.leaf, q.spare = sorted, q.leaf
}
