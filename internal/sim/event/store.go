package event

// Implementation constants.
const (
	chunkEntries = 127 // with the link: 1 KB
	blockChunks  = 64
)

// chunk is a piece of a list.
type chunk struct {
	next    uint64 // number of the next chunk; 0: none
	entries [chunkEntries]entry
}

// list is a slot's entries in the order in which they came: chunks that are full but for the last. The zero value is empty.
type list struct {
	tail  *chunk
	used  uint32 // entries of tail
	first uint32 // numbers of chunks
	last  uint32
}

func (l *list) empty() bool { return l.tail == nil }

func (l *list) append(s *store, e entry) {
	if l.tail == nil || l.used == chunkEntries {
		number, fresh := s.get()
		if l.tail == nil {
			l.first = number
		} else {
			l.tail.next = uint64(number)
		}
		l.tail, l.last, l.used = fresh, number, 0
	}
	l.tail.entries[l.used] = e
	l.used++
}

// store has the chunks of a queue. Blocks have no pointers in them, so that the garbage collector does not look at them.
type store struct {
	blocks []*[blockChunks]chunk
	free   uint32 // number of the first free chunk; 0: none. Free chunks are linked by next
}

func (s *store) at(number uint32) *chunk { return &s.blocks[number/blockChunks][number%blockChunks] }

// get returns an empty chunk.
func (s *store) get() (uint32, *chunk) {
	if s.free == 0 {
		s.grow()
	}
	number := s.free
	fresh := s.at(number)
	s.free, fresh.next = uint32(fresh.next), 0
	return number, fresh
}

func (s *store) grow() {
	s.blocks = append(s.blocks, new([blockChunks]chunk))
	base := uint32(len(s.blocks)-1) * blockChunks
	for i := range uint32(blockChunks) {
		if base+i != 0 { // number 0 means none
			s.put(base + i)
		}
	}
}

func (s *store) put(number uint32) {
	s.at(number).next = uint64(s.free)
	s.free = number
}

// takeFirst returns the entries of a list's first chunk, and the list without it. The caller puts the chunk back once it is done
// with the entries.
func (s *store) takeFirst(l list) (number uint32, part []entry, rest list) {
	number = l.first
	c := s.at(number)
	if number == l.last {
		return number, c.entries[:l.used], list{}
	}
	l.first = uint32(c.next)
	return number, c.entries[:], l
}
