// Package tcx tells whether the kernel attaches programs at tc by links.
package tcx

import (
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Loopback exists in every network namespace, with this number.
const Loopback = 1

// Have is nil if the kernel has tcx (Linux 6.6). A variable, so that tests can go without.
var Have = sync.OnceValue(func() error {
	_, err := link.QueryPrograms(link.QueryOptions{Target: Loopback, Attach: ebpf.AttachTCXIngress})
	return err
})
