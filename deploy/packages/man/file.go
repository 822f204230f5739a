package main

import (
	"bytes"
	"fmt"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"

	"github.com/ballast-lb/ballast/internal/schema"
)

const fileAbout = `
# NAME
ballast.yaml - services, servers and load balancers of a fleet

# SYNOPSIS
/etc/ballast/ballast.yaml

# DESCRIPTION
**ballast-lb(1)** and **ballast-agent(1)** read the file given by **-f**, and again when it changes. It is the same on every node, and has
keys: make it mode 600. **ballast-ctl-apply(1)** gives it to controllers; it may lack keys and ids then. Unknown or repeated keys, values of
the wrong type and combinations that cannot work are refused, with file, line and remedy. **ballast-validate(1)** checks a file.

A key like table.entries is the key entries in the section table.

# KEYS
keys.placement
: 32 hexadecimal digits. Places connections that carry no cookie. Never changes in a fleet's life

keys.cookie
: Epoch: key of 32 hexadecimal digits. One key, or two of consecutive epochs; cookies of both are read

keys.current
: Epoch whose key writes new cookies. The only one unless it is given

services, nodes, services[].servers
: Lists of what follows

node_health
: As health of a service, without deadline, port required: how nodes of the first tier check those of the second

`

// filePage is ballast.yaml(5).
func filePage(source string, date time.Time) []byte {
	var page bytes.Buffer
	fmt.Fprintf(&page, "%% \"BALLAST.YAML\" \"5\" \"%s\" \"%s\" \"Ballast\"\n%s", date.Format("Jan 2006"), source, fileAbout)
	writeFields(&page, schema.Fleet)
	page.WriteString("# SERVICES\n")
	writeFields(&page, schema.Service)
	page.WriteString("# SERVERS\n")
	writeFields(&page, schema.Server)
	page.WriteString("# NODES\n")
	writeFields(&page, schema.Node)
	page.WriteString("# FILES\n/usr/share/doc/ballast/examples/ballast.yaml, /usr/share/doc/ballast/examples/fleet.yaml\n\n" +
		"# SEE ALSO\n**ballast(1)**, **ballast-validate(1)**, **ballast-ctl-apply(1)**, /usr/share/doc/ballast/run/configure.md\n")
	return md2man.Render(page.Bytes())
}

// writeFields has a paragraph for each field, with what its row of docs/run/configure.md says.
func writeFields[T any](page *bytes.Buffer, fields []schema.Field[T]) {
	for i := range fields {
		f := &fields[i]
		text := f.Doc
		if f.More != "" {
			text += ". " + f.More
		}
		if allowed := f.Allowed(); allowed != "" {
			text += ". Values: " + allowed
		}
		if f.Default != "" {
			text += ". Default: " + f.Default
		}
		fmt.Fprintf(page, "%s\n: %s\n\n", f.Key, text)
	}
}
