package lease

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// observedLock is a lease of which is known whether the API server answers for it: every replica asks every two seconds.
type observedLock struct {
	resourcelock.Interface
	acquired atomic.Bool // the lease was, in this election

	mutex   sync.Mutex
	reached time.Time // the API server has answered
	failed  error     // the last time it has not
}

// Get implements resourcelock.Interface.
func (l *observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	return record, raw, l.observe(err)
}

// Create implements resourcelock.Interface.
func (l *observedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.observe(l.Interface.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (l *observedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.observe(l.Interface.Update(ctx, record))
}

// RecordEvent implements resourcelock.Interface: there are events only of a lease that was acquired.
func (l *observedLock) RecordEvent(event string) {
	l.acquired.Store(true)
	l.Interface.RecordEvent(event)
}

// observe notes whether the API server has answered: that there is no lease, or that another replica was quicker, is an answer.
func (l *observedLock) observe(err error) error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		l.reached, l.failed = time.Now(), nil
	} else {
		l.failed = err
	}
	return err
}

// problem is why nobody knows whether the lease can be had; nil: it is known.
func (l *observedLock) problem() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if time.Since(l.reached) < Duration {
		return nil
	}
	if l.failed == nil {
		return errors.New("it has not answered yet")
	}
	return l.failed
}
