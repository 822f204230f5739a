// Package objects lists what this program brings for the kernel.
package objects

import (
	"github.com/ballast-lb/ballast/internal/linux/bfd"
	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/linux/segment"
	"github.com/ballast-lb/ballast/internal/linux/server"
)

// An Object is a compiled BPF object.
type Object struct {
	Name    string
	Layout  string // of its pinned maps; empty: nothing of it is taken over by another version
	Content []byte // ELF
}

// All are those of daemons, and of `ballast pass`.
func All() []Object {
	return []Object{
		{"lb", lb.Layout, lb.Object()},
		{"server", server.Layout, server.Object()},
		{"check", "", checkroute.Object()},
		{"bfd", "", bfd.Object()},
		{"segment", "", segment.Object()},
		{"link", "", link.Object()},
	}
}
