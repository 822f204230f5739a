// Refusals in the words of whoever asked for a change: a fleet that is not a file has names, not places in lists.
package api

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/ballast-lb/ballast/internal/model"
)

var placed = regexp.MustCompile(`(services|servers)\[(\d+)\]`)

// named returns what is wrong with a fleet with services and servers by their names.
func named(err error, fleet *model.Fleet) error {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		var all []error
		for _, one := range e.Unwrap() {
			all = append(all, named(one, fleet))
		}
		return errors.Join(all...)
	case *model.Invalid:
		var in *model.Service // that servers are of
		rename := func(text, service, server string) string {
			return placed.ReplaceAllStringFunc(text, func(place string) string {
				part := placed.FindStringSubmatch(place)
				i, _ := strconv.Atoi(part[2])
				switch {
				case part[1] == "services" && i < len(fleet.Services):
					in = &fleet.Services[i]
					return fmt.Sprintf(service, in.Name)
				case part[1] == "servers" && in != nil && i < len(in.Servers):
					return fmt.Sprintf(server, in.Servers[i].Name, in.Servers[i].Address)
				}
				return place
			})
		}
		path := rename(e.Path, "services.%s", "servers.%[1]s")
		return &model.Invalid{Path: path, Problem: rename(e.Problem, "service %s", "server %s (%s)"), Remedy: e.Remedy}
	}
	return err
}
