// What a node is told faster than it can take it: the newest takes the place of what waits.
package nodeclient

// newest hands what is put to whoever takes it, in another goroutine. What is put while the one before is being taken waits; what waits is replaced.
type newest[T any] struct {
	waiting chan T
	ended   chan struct{}
}

func newNewest[T any](take func(T)) *newest[T] {
	n := &newest[T]{waiting: make(chan T, 1), ended: make(chan struct{})}
	go func() {
		defer close(n.ended)
		for one := range n.waiting {
			take(one)
		}
	}()
	return n
}

// put is called by one goroutine, and not after end.
func (n *newest[T]) put(one T) {
	select {
	case <-n.waiting:
	default:
	}
	n.waiting <- one
}

// end waits until what was put last is taken.
func (n *newest[T]) end() {
	close(n.waiting)
	<-n.ended
}
