// Package guarded has values that nobody reaches without their lock.
package guarded

import "sync"

// Value is a T and its lock.
type Value[T any] struct {
	mutex sync.Mutex
	value T
}

// New returns a value that nobody else knows.
func New[T any](value T) *Value[T] { return &Value[T]{value: value} }

// Do calls do with the value, one at a time.
func (v *Value[T]) Do(do func(T)) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	do(v.value)
}
