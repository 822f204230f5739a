// Which programs of bpf/lb.bpf.c the kernel is given, and when: the verifier takes longer for what few services need than for the rest.
package lb

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/linux/clock"
)

// objects are what the kernel has of the load balancer.
type objects struct {
	lbMaps
	lbVariables

	all      map[string]*ebpf.Map // by name, those of lbMaps too
	guard    sync.Mutex           // of the rest
	programs map[string]*ebpf.Program
	prepare  func() (*ebpf.CollectionSpec, error)
	spec     *ebpf.CollectionSpec // what prepare has read, while LB opens; after that its ten megabytes are read when they are needed
}

// Programs that are loaded when something needs them first.
var (
	programsOfRewriting = []string{"lb_rewritten"}
	programsOfTier      = []string{"lb_slow_tier"}
	programsOfSYNs      = []string{"lb_syn"} // of services with candidates
	programsOfSessions  = []string{"lb_syn", "lb_hello", "lb_session", "lb_slow_peer"}
	programsOfReplicas  = []string{"lb_replicated", "lb_ask", "lb_message", "lb_slow_peer", "replica_insert"}
	programsOfFunctions = []string{"lb_function", "lb_function_peer"}
	programsOnDemand    = slices.Concat(programsOfRewriting, programsOfTier, programsOfSYNs, programsOfSessions, programsOfReplicas, programsOfFunctions)
)

// load loads all maps, and the programs that nobody has to ask for.
func (o *objects) load(options ebpf.CollectionOptions) (err error) {
	if o.spec, err = o.prepare(); err != nil {
		return err
	}
	spec := o.spec
	names := slices.DeleteFunc(slices.Collect(maps.Keys(spec.Programs)), func(name string) bool {
		return slices.Contains(programsOnDemand, name)
	})
	collection, err := o.add(names, options)
	if err != nil {
		return err
	}
	o.all, o.programs = maps.Clone(collection.Maps), collection.Programs
	return errors.Join(collection.Assign(&o.lbMaps), collection.Assign(&o.lbVariables))
}

// add loads programs, and puts them where packets go on to them.
func (o *objects) add(names []string, options ebpf.CollectionOptions) (*ebpf.Collection, error) {
	spec, err := o.copySpec()
	if err != nil {
		return nil, err
	}
	other := func(name string) bool { return !slices.Contains(names, name) }
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return other(name) })
	calls := spec.Maps["tail_calls"]
	calls.Contents = slices.DeleteFunc(calls.Contents, func(call ebpf.MapKV) bool { return other(call.Value.(string)) })
	return ebpf.NewCollectionWithOptions(spec, options)
}

func (o *objects) copySpec() (*ebpf.CollectionSpec, error) {
	if o.spec == nil {
		return o.prepare()
	}
	return o.spec.Copy(), nil
}

// need loads programs unless they are: before packets are let go on to them.
func (o *objects) need(names []string) error {
	o.guard.Lock()
	defer o.guard.Unlock()
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return o.programs[name] != nil })
	if len(names) == 0 {
		return nil
	}
	collection, err := o.add(names, ebpf.CollectionOptions{MapReplacements: o.all})
	if err != nil {
		return fmt.Errorf("load %s of the load balancer: %w", names[0], err)
	}
	maps.Copy(o.programs, collection.Programs)
	for _, m := range collection.Maps {
		m.Close()
	}
	return nil
}

// program is one that is loaded.
func (o *objects) program(name string) *ebpf.Program {
	o.guard.Lock()
	defer o.guard.Unlock()
	return o.programs[name]
}

// Close lets go of all.
func (o *objects) Close() error {
	var errs []error
	for _, program := range o.programs {
		errs = append(errs, program.Close())
	}
	for _, m := range o.all {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// LoadAll has the kernel verify also what no service needs yet.
func (lb *LB) LoadAll() error {
	return lb.objects.need(programsOnDemand)
}

// enableSYNs loads what services of an earlier process need: packets of theirs may come at once.
func (lb *LB) enableSYNs() error {
	var errs []error
	for _, number := range lb.tables.serviceRows {
		if number.value != 0 && lb.tables.services[number.value].Session != 0 {
			errs = append(errs, lb.objects.need(programsOfSessions))
		}
		if number.value != 0 && lb.tables.services[number.value].Columns > 1 {
			errs = append(errs, lb.objects.need(programsOfSYNs))
		}
	}
	return errors.Join(errs...)
}

// FollowClock tells the program how its clock differs from the time of day. It may change while the host runs: call it now and then.
func (lb *LB) FollowClock() error {
	ahead, err := clock.TAIOffset()
	return errors.Join(err, lb.objects.SynCookieTaiNs.Set(uint64(ahead)))
}
