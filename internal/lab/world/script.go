// How scenarios fail: each is a script, which ends like a test at its first error.
package world

import "fmt"

// failed is what Check panics with.
type failed struct{ error }

// Check ends the script that it is called in, deferred calls included, when err is not nil: Try returns it.
func Check(err error) {
	if err != nil {
		panic(failed{err})
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
		case failed:
			err = what.error
		default:
			panic(what)
		}
	}()
	script()
	return nil
}
