package scenario

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

// maxBytes is what is read at most of a file.
const maxBytes = 1 << 20

// Error is one objection to a scenario file.
type Error struct {
	File string
	yamltree.Objection
}

// Error returns file:line: key: problem: remedy.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s:%d: ", e.File, e.Line)
	if e.Path != "" {
		text += e.Path + ": "
	}
	return text + e.Problem + ": " + e.Remedy
}

// reader reads the file of a scenario, and those that it names.
type reader struct {
	*yamltree.Reader
	file string
	open Opener
}

func newReader(file string, open Opener) *reader {
	return &reader{file: file, open: open, Reader: yamltree.New(yamltree.Rules{
		Bytes: maxBytes, TooLarge: "give connections in a file of their own", Empty: "see ballast-lab sim scenario --help",
	})}
}

func (r *reader) joined() error {
	var list []error
	for _, o := range r.Objections() {
		list = append(list, &Error{r.file, o})
	}
	return errors.Join(list...)
}

// list reads each element of a sequence.
func (r *reader) list(most int, read yamltree.Value) yamltree.Value {
	return func(node *yaml.Node, path string) {
		if node.Kind == yaml.SequenceNode && len(node.Content) > most {
			r.Fail(node.Line, path, fmt.Sprintf("give at most %d", most), "there are %d", len(node.Content))
			return
		}
		r.Sequence(node, path, read)
	}
}

func (r *reader) text(target *string) yamltree.Value {
	return func(node *yaml.Node, path string) {
		text, ok := r.Scalar(node, path)
		if !ok {
			return
		}
		if *target = text; text == "" || len(text) > 200 {
			r.Fail(node.Line, path, "give 1 to 200 letters", "%d letters", len(text))
		}
	}
}

func (r *reader) choice(target *string, choices []string) yamltree.Value {
	return func(node *yaml.Node, path string) {
		text, ok := r.Scalar(node, path)
		if ok && !slices.Contains(choices, text) {
			r.Fail(node.Line, path, "use one of "+strings.Join(choices, ", "), "unknown value %q", text)
		}
		*target = text
	}
}

// whole reads a whole number.
func (r *reader) whole(target *int, least, most int) yamltree.Value {
	return r.Value(func(text string) (err error) {
		*target, err = model.ParseNumber(text, least, most)
		return err
	})
}

// number reads a number that may have a fraction.
func (r *reader) number(target *float64, least, most float64) yamltree.Value {
	return func(node *yaml.Node, path string) {
		text, ok := r.Scalar(node, path)
		if !ok {
			return
		}
		number, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(number) || number < least || number > most {
			r.Fail(node.Line, path, fmt.Sprintf("use a number from %g to %g", least, most), "%q is not such a number", text)
			return
		}
		*target = number
	}
}

// duration reads a time like 250ms or 1m30s, in ns.
func (r *reader) duration(target *int64, least time.Duration) yamltree.Value {
	return func(node *yaml.Node, path string) {
		text, ok := r.Scalar(node, path)
		if !ok {
			return
		}
		duration, err := time.ParseDuration(text)
		if err != nil || duration < least || duration > maxLength {
			r.Fail(node.Line, path, fmt.Sprintf("use a duration from %v to %v, like 250ms or 1m30s", least, maxLength), "%q is not such a duration", text)
			return
		}
		*target = duration.Nanoseconds()
	}
}
