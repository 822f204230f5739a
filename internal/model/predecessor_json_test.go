package model

import (
	"encoding/json"
	"testing"
)

// Stores and nodes keep the share by JSON: what they read is what was written.
func TestTheShareIsReadAsItWasWritten(t *testing.T) {
	for _, permille := range []uint16{0, 1, 300, 999, ShareAll} {
		text, err := json.Marshal(Predecessor{Share: ShareOf(permille)})
		if err != nil {
			t.Fatal(err)
		}
		var read Predecessor
		if err := json.Unmarshal(text, &read); err != nil || read.Share.Permille() != permille {
			t.Errorf("%d is read as %d from %s: %v", permille, read.Share.Permille(), text, err)
		}
	}
}
