// Command choices writes those enumerations of internal/model that packets go by as a header for the BPF programs: there is no second list to keep.
package main

import (
	"encoding"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/ballast-lb/ballast/internal/model"
)

func main() {
	// REUSE-IgnoreStart
	header := "/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */\n" +
		"/* choices.h - what a service may choose: generated from internal/model/enums.go. */\n#pragma once\n\n" +
		enum[model.Dispatch]("dispatch") + enum[model.Affinity]("affinity") + enum[model.Forward]("forward") +
		enum[model.AcceptPolicy]("accept_policy") + enum[model.AcceptLoad]("accept_load") +
		fmt.Sprintf("#define PREDECESSOR_ID %#x /* of the first predecessor; servers' are below 0x8000 */\n", model.PredecessorID)
	// REUSE-IgnoreEnd
	if err := os.WriteFile(os.Args[1], []byte(header), 0o644); err != nil {
		log.Fatal(err)
	}
}

// enum declares the values that have names. They are numbered from 0.
func enum[E interface {
	~uint8
	encoding.TextMarshaler
}](name string) string {
	var values []string
	for v := E(0); ; v++ {
		text, err := v.MarshalText()
		if err != nil {
			return fmt.Sprintf("enum %s { %s };\n", name, strings.Join(values, ", "))
		}
		values = append(values, strings.ToUpper(name+"_"+strings.ReplaceAll(string(text), "-", "_")))
	}
}
