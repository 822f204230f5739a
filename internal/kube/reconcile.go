package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
	"github.com/ballast-lb/ballast/internal/model"
)

const (
	// settle is how long changes of a cluster are waited for once there is one: they come in numbers.
	settle = 100 * time.Millisecond
	// A pass that has failed is repeated after the first of these; the time doubles.
	firstRetry, lastRetry = time.Second, 30 * time.Second
	// stuckAfter is when a pass that shows no progress counts as stuck.
	stuckAfter = 2 * time.Minute
)

// reconciler makes the fleet and the cluster what they should be.
type reconciler struct {
	options mapping.Options
	resync  time.Duration
	cluster *cluster
	fleet   *fleet
	objects *objects
	log     *slog.Logger

	mutex   sync.Mutex
	outcome outcome
}

// outcome is what is known of passes.
type outcome struct {
	passes, failures int
	leads            bool
	reached          time.Time // controllers have answered
	unreached        error     // the last time they have not
	progress         time.Time // of the pass under way; zero: there is none
	last             mapping.Output
	refused          int // services that controllers refuse
	done             time.Time
}

func (r *reconciler) note(change func(*outcome)) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	change(&r.outcome)
}

func (r *reconciler) now() outcome {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.outcome
}

// work goes on until ctx ends: one pass after each change, and one from time to time, as others change the fleet.
func (r *reconciler) work(ctx context.Context) {
	r.note(func(o *outcome) { o.leads = true })
	defer r.note(func(o *outcome) { o.leads, o.progress = false, time.Time{} })
	for end := time.Now().Add(firstRetry); !r.cluster.synced() && time.Now().Before(end); {
		if !pause(ctx, settle) {
			return
		}
	}
	next, retry, waits := time.NewTimer(0), firstRetry, false
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case <-r.cluster.changed:
			if waits {
				continue // the timer is set
			}
			if !pause(ctx, settle) {
				return
			}
		}
		wait := r.resync
		err := r.pass(ctx)
		if waits = holdsUp(err); err != nil && ctx.Err() == nil {
			wait = retry/2 + rand.N(retry)
			retry = min(2*retry, lastRetry)
			r.log.Warn("the fleet and the cluster are not in step: trying again", "error", err, "in", wait.Round(time.Millisecond))
		} else {
			retry = firstRetry
		}
		next.Reset(wait)
	}
}

// objectsError is why some objects of the cluster are not as they should be, where all others are.
type objectsError struct{ error }

// holdsUp reports whether changes wait for the repetition of a pass that ended so: who writes an object that cannot be changed holds up nobody else.
func holdsUp(err error) bool {
	_, some := err.(objectsError)
	return err != nil && !some
}

// pause reports false when ctx ends before the time has passed.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// read asks controllers for the fleet, and notes whether they have answered.
func (r *reconciler) read(ctx context.Context) (model.Fleet, error) {
	fleet, err := r.fleet.read(ctx)
	r.note(func(o *outcome) {
		if o.unreached = err; err == nil {
			o.reached = time.Now()
		}
	})
	return fleet, err
}

func (r *reconciler) progress() { r.note(func(o *outcome) { o.progress = time.Now() }) }

// pass looks at everything once.
func (r *reconciler) pass(ctx context.Context) (err error) {
	r.progress()
	defer func() {
		r.note(func(o *outcome) {
			o.progress = time.Time{}
			if o.passes++; err != nil {
				o.failures++
			} else {
				o.done = time.Now()
			}
		})
	}()
	if err := r.cluster.gateways.state(); err != nil {
		return err
	}
	if !r.cluster.synced() {
		return errors.New("the API server has not listed everything yet")
	}
	have, err := r.read(ctx)
	if err != nil {
		return err
	}
	in, err := r.cluster.input()
	if err != nil {
		return err
	}
	in.Fleet, in.Balancers = have.Services, have.Nodes
	out := mapping.Map(r.options, in)
	want, unsecured, failed := r.secure(ctx, &out, have.Services)
	failed = append(failed, r.reconcileDerived(ctx, &out, unsecured)...)
	refused, err := r.fleet.apply(ctx, have.Services, want)
	if err != nil {
		return errors.Join(append(failed, err)...)
	}
	failed = append(failed, r.report(ctx, &out, refused)...)
	failed = append(failed, r.reportGateways(ctx, &out, refused)...)
	if ctx.Err() == nil {
		r.objects.warn(out.Events)
	}
	r.note(func(o *outcome) { o.last, o.refused = out, len(refused) })
	if len(out.Vanished) > 0 {
		r.log.Warn("the cluster has no Service or no Gateway of ours any more, and none was deleted: the fleet keeps their services; remove them with `ballast ctl service remove` if that is meant",
			"services", model.Some(out.Vanished))
	}
	if len(failed) > 0 {
		return objectsError{errors.Join(failed...)}
	}
	return nil
}

// secure puts finalizers on Services and Gateways before the fleet has services of them. What could not be secured is not added to the fleet yet;
// unsecured are such Gateways.
func (r *reconciler) secure(ctx context.Context, out *mapping.Output, have []model.Service) (want []model.Service, unsecured map[string]bool, failed []error) {
	inFleet, waits := map[string]bool{}, map[string]bool{}
	for i := range have {
		inFleet[have[i].Name] = true
	}
	type unfinished struct {
		mapping.Referent
		names   []string
		service *mapping.Object // nil: it is a Gateway
	}
	var without []unfinished
	for i := range out.Objects {
		if object := &out.Objects[i]; object.Finalized && !r.options.HasFinalizer(object.Service) {
			without = append(without, unfinished{object.Service, object.Names, object})
		}
	}
	for i := range out.Gateways {
		if g := &out.Gateways[i]; g.Finalized && !r.options.HasFinalizer(g.Gateway) {
			without = append(without, unfinished{g.Gateway, slices.Collect(maps.Keys(g.Services)), nil})
		}
	}
	errs := r.each(ctx, len(without), func(ctx context.Context, i int) error {
		return r.objects.finalize(ctx, without[i].Referent, r.options.Finalizer(), true)
	})
	failed, unsecured = failures(slices.Clone(errs)), map[string]bool{}
	for i, err := range errs {
		if err == nil {
			continue
		}
		for _, name := range without[i].names {
			waits[name] = !inFleet[name]
		}
		if object := without[i].service; object != nil {
			object.Addresses = mapping.Ingress(object.Service) // as it is
		} else {
			unsecured[without[i].GetNamespace()+"/"+without[i].GetName()] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(out.Services), func(s model.Service) bool { return waits[s.Name] }), unsecured, failed
}

// atOnce is how many changes of Services the API server is asked for at once.
const atOnce = 16

// each does something for each of n, several at once, and returns the errors in their order.
func (r *reconciler) each(ctx context.Context, n int, do func(ctx context.Context, i int) error) []error {
	errs := make([]error, n)
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i := range n {
		group.Go(func() error {
			if errs[i] = ctx.Err(); errs[i] == nil {
				r.progress()
				errs[i] = do(ctx, i)
			}
			return nil
		})
	}
	group.Wait()
	return errs
}

// report tells the cluster what the fleet has.
func (r *reconciler) report(ctx context.Context, out *mapping.Output, refused map[string]error) (failed []error) {
	var settled []mapping.Object
	for _, object := range out.Objects {
		names := object.Names
		if len(names) == 0 { // those that it had must be gone
			names = r.options.Names(object.Service)
		}
		taken := true
		for _, name := range names {
			if why := refused[name]; why != nil {
				taken = false
				out.Events = append(out.Events, mapping.Event{Object: object.Service, Reason: reasonRefused, Message: notTaken(name, why)})
			}
		}
		if taken { // others have what they had
			settled = append(settled, object)
		}
	}
	errs := r.each(ctx, len(settled), func(ctx context.Context, i int) error {
		object := settled[i]
		switch {
		case len(object.Addresses) > 0:
			return r.objects.report(ctx, object.Service, object.Addresses)
		case r.options.HasFinalizer(object.Service): // none of its services is left
			if err := r.objects.report(ctx, object.Service, nil); err != nil {
				return err
			}
			return r.objects.finalize(ctx, object.Service, r.options.Finalizer(), false)
		}
		return nil
	})
	return failures(errs)
}

func notTaken(name string, why error) string {
	return model.ForPeople(fmt.Sprintf("the fleet does not take a change of %s: %v", name, why))
}
