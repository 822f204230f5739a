package event

// Implementation constants.
const (
	chunkEvents = 128 // 1 KB
	blockChunks = 64
)

// chunk is a piece of a list.
type chunk [chunkEvents]Event

// list is a slot's events in the order in which they came: chunks that are full but for the last. The zero value is empty.
type list struct {
	tail  *chunk
	first uint32 // numbers of chunks
	last  uint32
	count uint32 // of events; what is left over by full chunks is in the tail
}

// store has the chunks of a queue. Neither they nor their links have pointers in them, so that the garbage collector does not look at them.
type store struct {
	blocks []*[blockChunks]chunk
	next   []uint32 // by chunk: number of the next one of its list, or of those that are free
	free   uint32   // number of the first free chunk; none: 0, which is not used
}

func (s *store) at(number uint32) *chunk { return &s.blocks[number/blockChunks][number%blockChunks] }

// extend gives a list whose chunks are full, or that has none, another one.
func (s *store) extend(l *list) {
	if s.free == 0 {
		s.grow()
	}
	number := s.free
	s.free = s.next[number]
	if l.count == 0 {
		l.first = number
	} else {
		s.next[l.last] = number
	}
	l.last, l.tail = number, s.at(number)
}

func (s *store) grow() {
	s.blocks = append(s.blocks, new([blockChunks]chunk))
	base := uint32(len(s.next))
	for i := range uint32(blockChunks) {
		s.next = append(s.next, 0)
		if base+i != 0 {
			s.put(base + i)
		}
	}
}

func (s *store) put(number uint32) {
	s.next[number] = s.free
	s.free = number
}

// each gives the events of a list to look, chunk by chunk in order.
func (s *store) each(l *list, look func(part []Event)) {
	number := l.first
	for left := l.count; left > 0; left -= min(left, chunkEvents) {
		look(s.at(number)[:min(left, chunkEvents)])
		number = s.next[number]
	}
}

// empty gives the events of a list to take, chunk by chunk in order, and frees them.
func (s *store) empty(l list, take func(part []Event)) {
	number := l.first
	for left := l.count; left > 0; {
		part := s.at(number)[:min(left, chunkEvents)]
		next := s.next[number]
		take(part)
		s.put(number)
		left -= uint32(len(part))
		number = next
	}
}
