// Values of daemons' flags that cannot be right: refused before anything is opened, made or attached.
package command

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// CheckEndpoints refuses what nobody can connect to.
func CheckEndpoints(flag string, endpoints []string) error {
	for _, endpoint := range endpoints {
		host, port, err := net.SplitHostPort(endpoint)
		if err != nil || host == "" || !isPort(port) {
			return Usage("--%s %q: use HOST:PORT with a port from 1 to 65535, like 10.0.0.21:6443 or [2001:db8::1]:6443", flag, endpoint)
		}
	}
	return nil
}

// CheckListen refuses what cannot be listened at; the host may be missing, the port may be 0, for any. Empty: nothing is listened at.
func CheckListen(flag, address string) error {
	if address == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(address); err != nil || (port != "0" && !isPort(port)) {
		return Usage("--%s %q: use ADDRESS:PORT with a port from 1 to 65535, like 127.0.0.1:9435 or :9435", flag, address)
	}
	return nil
}

func isPort(text string) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return err == nil && port > 0
}

// NotNegative refuses times before now.
func NotNegative(flag string, d time.Duration) error {
	if d < 0 {
		return Usage("--%s %s: use 0s or more", flag, d)
	}
	return nil
}

// Require makes flags such as must be given.
func Require(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		if err := cmd.MarkFlagRequired(flag); err != nil {
			panic(err)
		}
	}
}

// oneOf is a flag that has one of a few values.
type oneOf[T ~string] struct {
	value   *T
	allowed []T
}

// OneOf is a flag that has one of these values.
func OneOf[T ~string](value *T, allowed ...T) pflag.Value { return &oneOf[T]{value, allowed} }

func (f *oneOf[T]) String() string { return string(*f.value) }
func (f *oneOf[T]) Type() string   { return "string" }

// Choices are the values, for completion.
func (f *oneOf[T]) Choices() []string {
	values := make([]string, len(f.allowed))
	for i, value := range f.allowed {
		values[i] = string(value)
	}
	return values
}

func (f *oneOf[T]) Set(text string) error {
	if !slices.Contains(f.allowed, T(text)) {
		return fmt.Errorf("use %s", alternatives(f.Choices()))
	}
	*f.value = T(text)
	return nil
}

// ControllerPort is where controllers listen unless they are told otherwise.
const ControllerPort = "6443"

// Controllers completes those of a flag, HOST[:PORT], that have no port, and refuses what cannot be reached.
func Controllers(flag string, given []string) (complete []string, err error) {
	for _, endpoint := range given {
		if _, _, err := net.SplitHostPort(endpoint); err != nil {
			endpoint = net.JoinHostPort(strings.Trim(endpoint, "[]"), ControllerPort)
		}
		complete = append(complete, endpoint)
	}
	return complete, CheckEndpoints(flag, complete)
}
