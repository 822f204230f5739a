package api_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// Whoever adds a method that reads finds here that its answer has to say so.
func TestWhateverIsReadSaysWhenItMayBeOld(t *testing.T) {
	memory := &apitest.Memory{}
	fleet, url := serveFleet(t, memory)
	apply(t, fleet, web(at("10.0.0.1")))
	methods := ballastv1.File_ballast_proto.Services().ByName("Fleet").Methods()
	read := 0
	for i := range methods.Len() {
		method := methods.Get(i)
		if changes := method.Output().Name(); changes == "ChangeResponse" || changes == "AddKeyResponse" {
			continue
		}
		read++
		for _, why := range []string{"", "no leader"} {
			if memory.Stale = nil; why != "" {
				memory.Stale = errors.New(why)
			}
			question := "{}"
			if method.Name() == "ListExplanations" {
				question = `{"packet": {"client": "203.0.113.7:1", "vip": "198.51.100.10:80"}}`
			}
			response, err := http.Post(url+"/ballast.v1.Fleet/"+string(method.Name()), "application/json", strings.NewReader(question))
			if err != nil {
				t.Fatal(err)
			}
			var answer struct{ Unconfirmed string }
			err = json.NewDecoder(response.Body).Decode(&answer)
			response.Body.Close()
			if err != nil || response.StatusCode != http.StatusOK || answer.Unconfirmed != why {
				t.Errorf("%s where the store says %q: %s %q, %v", method.Name(), why, response.Status, answer.Unconfirmed, err)
			}
		}
	}
	if read < 5 {
		t.Errorf("only %d methods read", read)
	}
}
