package model

import (
	"errors"
	"fmt"
	"strings"
)

// Invalid says which part of a fleet is wrong, why, and what to do about it.
type Invalid struct {
	Path    string // where, as in the configuration file: services[0].servers[2].id; empty = the whole fleet
	Problem string // what is wrong
	Remedy  string // what to do instead
}

// Error returns path: problem: remedy.
func (e *Invalid) Error() string {
	parts := []string{e.Path, e.Problem, e.Remedy}
	if e.Path == "" {
		parts = parts[1:]
	}
	return strings.Join(parts, ": ")
}

// findings collects what Validate objects to, in the order of the file.
type findings []error

func (f *findings) add(path, remedy, problem string, args ...any) {
	*f = append(*f, &Invalid{Path: path, Problem: fmt.Sprintf(problem, args...), Remedy: remedy})
}

func (f *findings) join() error { return errors.Join(*f...) }
