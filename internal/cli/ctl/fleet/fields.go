// Flags of fields: what nobody gave is not in a request.
package fleet

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ballast-lb/ballast/internal/schema"
)

// flagNames makes the name of a flag of a field's key: table.entries is --table-entries.
var flagNames = strings.NewReplacer("ports", "port", "load.queue_limit", "queue-limit", "health.check", "check", "health.all_down", "all-down",
	"health.deadline", "unhealthy-deadline", "health.", "check-", ".", "-", "_", "-")

// fieldFlag is a flag that puts its value into a request: what nobody gave is not in it.
type fieldFlag struct {
	unit, allowed string
	set           func(text string) error
}

func (f *fieldFlag) String() string { return "" }
func (f *fieldFlag) Type() string   { return f.unit }

// word is a value that is one of a few.
var word = regexp.MustCompile("^`?([a-z][a-z0-9-]*)`?$")

// Choices are the values, for completion, where they are words.
func (f *fieldFlag) Choices() (choices []string) {
	for part := range strings.SplitSeq(strings.ReplaceAll(f.allowed, " or ", ", "), ", ") {
		found := word.FindStringSubmatch(part)
		if found == nil {
			return nil
		}
		choices = append(choices, found[1])
	}
	return choices
}

func (f *fieldFlag) Set(text string) error { return f.set(text) }

// fieldFlags makes a flag of each field. What is given is in message once the flags are parsed, and nothing else is. In a blank T nothing is
// given; encode makes a message of a T.
func fieldFlags[T any, M proto.Message](cmd *cobra.Command, fields []schema.Field[T], blank T, message M, encode func(*T) M) {
	for _, f := range fields {
		set := func(text string) error {
			given := blank
			if err := setField(&f, &given, text); err != nil {
				return err
			}
			copyField(message.ProtoReflect(), encode(&given).ProtoReflect(), f.Key)
			if f.Also != "" {
				copyField(message.ProtoReflect(), encode(&given).ProtoReflect(), f.Also)
			}
			return nil
		}
		cmd.Flags().Var(&fieldFlag{f.Unit, f.Allowed(), set}, flagNames.Replace(f.Key), fieldUsage(&f))
	}
}

func setField[T any](f *schema.Field[T], target *T, text string) error {
	elements := []string{text}
	switch {
	case text == "" && f.Clear:
		return nil
	case f.List == " ":
		elements = strings.Fields(text)
	case f.List != "":
		elements = strings.Split(text, f.List)
	}
	if len(elements) == 0 {
		return errors.New("empty")
	}
	for _, element := range elements {
		if err := f.Set(target, strings.TrimSpace(element)); err != nil {
			return err
		}
	}
	return nil
}

// copyField copies what a message has at a key like table.entries; 0 and nothing, too, where the message can say them.
func copyField(to, from protoreflect.Message, key string) {
	name, rest, nested := strings.Cut(key, ".")
	field := to.Descriptor().Fields().ByName(protoreflect.Name(name))
	switch {
	case nested:
		copyField(to.Mutable(field).Message(), from.Get(field).Message(), rest)
	case field.IsList() && !from.Has(field):
		to.Clear(field)
	case field.Message() != nil && !from.Has(field): // 0s
		to.Mutable(field)
	default:
		to.Set(field, from.Get(field))
	}
}

// fieldUsage is what the help says of a field.
func fieldUsage[T any](f *schema.Field[T]) string {
	usage := f.Doc
	if allowed := f.Allowed(); allowed != "" {
		usage += ": " + allowed
	}
	if f.Default != "" {
		usage += fmt.Sprintf(" (default %s)", f.Default)
	}
	return strings.ReplaceAll(usage, "`", "") // pflag has a use for them
}
