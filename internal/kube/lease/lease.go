// Package lease has one of several replicas work at a time: that which holds a lease of the API server.
package lease

import (
	"context"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// A replica that cannot renew the lease stops leading before another one begins.
const (
	Duration      = 15 * time.Second
	RenewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// Lease is one that a replica takes part in elections for.
type Lease struct {
	name, identity string
	lock           *observedLock
	log            *slog.Logger
}

// New returns the lease of that name; identity is this replica's, other than that of the others.
func New(client kubernetes.Interface, namespace, name, identity string, log *slog.Logger) *Lease {
	return &Lease{name, identity, &observedLock{Interface: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: identity}}}, log}
}

// Problem is why nobody knows whether the lease can be had; nil: it is known.
func (l *Lease) Problem() error { return l.lock.problem() }

// Lead takes part in elections until ctx ends, and works while it leads. The lease is released only once nothing is done under it any more.
func (l *Lease) Lead(ctx context.Context, work func(context.Context)) error {
	for ctx.Err() == nil {
		held, release := context.WithCancel(context.WithoutCancel(ctx))
		done := make(chan struct{})
		l.lock.acquired.Store(false)
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{Lock: l.lock, LeaseDuration: Duration, RenewDeadline: RenewDeadline,
			RetryPeriod: retryPeriod, ReleaseOnCancel: true, Name: l.name, Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(lease context.Context) {
					defer close(done)
					working, stop := context.WithCancel(lease)
					defer stop()
					defer context.AfterFunc(ctx, stop)()
					l.log.Info("leading", "lease", l.name, "identity", l.identity)
					work(working)
					release()
				},
				OnStoppedLeading: func() {},
				OnNewLeader: func(identity string) {
					if identity != l.identity {
						l.log.Info("another replica leads", "lease", l.name, "identity", identity)
					}
				},
			}})
		if err != nil {
			release()
			return err
		}
		waiting := context.AfterFunc(ctx, func() {
			if !l.lock.acquired.Load() { // else what works ends, and releases it
				release()
			}
		})
		elector.Run(held)
		if waiting(); l.lock.acquired.Load() {
			<-done
			l.log.Info("not leading any more", "lease", l.name, "identity", l.identity)
		}
		release()
	}
	return nil
}
