package config

import (
	"errors"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

// reader reads the file of a fleet.
type reader struct {
	*yamltree.Reader
	file string
}

func newReader(file string) *reader {
	return &reader{file: file, Reader: yamltree.New(yamltree.Rules{
		Bytes: MaxBytes, TooLarge: "split the fleet", Empty: "write `services: []` to remove every service",
	})}
}

// addInvalid places the objections of Validate at the line of the key, or of the nearest thing around a key that is not there.
func (r *reader) addInvalid(err error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return
	}
	for _, e := range joined.Unwrap() {
		var invalid *model.Invalid
		if errors.As(e, &invalid) {
			r.FailAt(invalid.Path, invalid.Remedy, "%s", invalid.Problem)
		}
	}
}

func (r *reader) joined() error { return errors.Join(r.errors()...) }

func (r *reader) errors() (list []error) {
	for _, o := range r.Objections() {
		list = append(list, &Error{File: r.file, Line: o.Line, Reason: &model.Invalid{Path: o.Path, Problem: o.Problem, Remedy: o.Remedy}})
	}
	return list
}
