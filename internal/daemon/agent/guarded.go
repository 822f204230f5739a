package agent

import "sync"

// guarded is a value that nobody reaches without its lock.
type guarded[T any] struct {
	mutex sync.Mutex
	value T
}

// guard returns a value that nobody else knows.
func guard[T any](value T) *guarded[T] { return &guarded[T]{value: value} }

// Do calls do with the value, one at a time.
func (g *guarded[T]) Do(do func(T)) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	do(g.value)
}
