// Package link loads bpf/link.bpf.c: the pass program for ends of veth pairs, and for labs the loss on one end of a link.
package link

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/linux/attach"
)

//go:generate go tool bpf2go -target bpfel link ../../../bpf/link.bpf.c

// Faults says what one end of a link loses; the layout is that of struct link_faults.
type Faults struct {
	DropPermille       uint32 // of all IP packets, at random
	DropSYNsPerFlow    uint32 // the first N copies of each SYN
	DropSYNACKsPerFlow uint32 // the first N copies of each SYN-ACK
	_                  uint32
}

// Losses counts what was lost; the layout is that of struct link_losses.
type Losses struct {
	DroppedRandom  uint64 `json:"dropped_random"`
	DroppedSYNs    uint64 `json:"dropped_syns"`
	DroppedSYNACKs uint64 `json:"dropped_syn_acks"`
}

// A Wire holds the loaded programs of one link end.
type Wire struct {
	objects linkObjects
	egress  *attach.TC
}

// Load loads the programs. Nothing is attached yet.
func Load() (*Wire, error) {
	wire := &Wire{}
	if err := loadLinkObjects(&wire.objects, nil); err != nil {
		return nil, fmt.Errorf("load the lab's link programs: %w", err)
	}
	return wire, nil
}

// PassFD is the descriptor of the pass program, for attaching by netlink inside another namespace.
func (w *Wire) PassFD() int { return w.objects.Pass.FD() }

// AttachLoss puts the losing program at the egress of an interface of the calling thread's namespace.
func (w *Wire) AttachLoss(ifindex int) error {
	attached := &attach.TC{Program: w.objects.Lose, Hook: attach.Egress, Ifindex: ifindex}
	if err := attached.Attach(); err != nil {
		return fmt.Errorf("lose packets: %w", err)
	}
	w.egress = attached
	return nil
}

// SetFaults changes what is lost from the next frame on. The zero value loses nothing.
func (w *Wire) SetFaults(faults Faults) error {
	return w.objects.Faults.Put(uint32(0), faults)
}

// Losses reads what has been lost so far.
func (w *Wire) Losses() (losses Losses, err error) {
	return losses, w.objects.Losses.Lookup(uint32(0), &losses)
}

// Close detaches the losing program and unloads both; a pass program attached by netlink stays, and without tcx (internal/linux/attach/clsact.go) a filter
// in another network namespace than the caller's: those of labs go with their namespaces.
func (w *Wire) Close() error {
	if w.egress != nil {
		_ = w.egress.Detach()
	}
	return w.objects.Close()
}

// Object is the compiled BPF object (ELF) that is loaded.
func Object() []byte { return _LinkBytes }
