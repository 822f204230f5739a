// Package script is for what runs like a test, step by step, to its end or its first error: scenarios of the lab, experiments of the
// simulator, measurements of the control plane. Scripts run on one goroutine.
package script

import "fmt"

// Ended is what Check panics with.
type Ended struct{ error }

// Check ends the script that it is called in, deferred calls included, when err is not nil: Try returns it.
func Check(err error) {
	if err != nil {
		panic(Ended{err})
	}
}

// Checkf is Check for an error that needs to be told what was being done.
func Checkf(err error, doing string, arguments ...any) {
	if err != nil {
		Check(fmt.Errorf("%s: %w", fmt.Sprintf(doing, arguments...), err))
	}
}

// Must is Check for what returns a value as well.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Try runs a script, on this goroutine, and returns the error that has ended it.
func Try(script func()) (err error) {
	defer func() {
		switch what := recover().(type) {
		case nil:
		case Ended:
			err = what.error
		default:
			panic(what)
		}
	}()
	script()
	return nil
}
