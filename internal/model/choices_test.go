package model

import "testing"

func TestChoicesThatCannotWorkAreRefused(t *testing.T) {
	expectRefused(t, []contradiction{
		{"choices by hash", func(f *Fleet) { f.Services[0].Dispatch, f.Services[0].Affinity = DispatchChoices, AffinityHash }, "services[0].dispatch", "different servers"},
		{"choices on udp", func(f *Fleet) { f.Services[0].Protocol, f.Services[0].Dispatch = ProtocolUDP, DispatchChoices }, "services[0].dispatch", "use dispatch: maglev"},
		{"choices for quic", func(f *Fleet) { quicService(f).Dispatch = DispatchChoices }, "services[0].dispatch", "use dispatch: p2c"},
		{"choices with a table", func(f *Fleet) { f.Services[0].Dispatch, f.Services[0].Affinity = DispatchChoices, AffinityTable }, "services[0].affinity", "cookie or history"},
		{"choices with through", func(f *Fleet) { f.Services[0].Dispatch, f.Services[0].Return = DispatchChoices, ReturnThrough }, "services[0].return", "agents"},
		{"choices without tunnels", func(f *Fleet) { f.Services[0].Dispatch, f.Services[0].Forward = DispatchChoices, ForwardL2 }, "services[0].forward", "no room"},
		{"one candidate", func(f *Fleet) { f.Services[0].Dispatch, f.Services[0].Choices.Candidates = DispatchChoices, 1 }, "services[0].choices.candidates", "2 to 4"},
		{"too long a history", func(f *Fleet) { f.Services[0].Dispatch, f.Services[0].Choices.History = DispatchChoices, 5 }, "services[0].choices.history", "1 to 4"},
		{"static without a threshold", func(f *Fleet) {
			f.Services[0].Dispatch, f.Services[0].Choices.Accept.Policy = DispatchChoices, AcceptStatic
		}, "services[0].choices.accept.threshold", "dynamic"},
		{"margin of all", func(f *Fleet) { f.Services[0].Dispatch, f.Services[0].Choices.Accept.Margin = DispatchChoices, 50 }, "services[0].choices.accept.margin", "1 to 49"},
		{"accept by no endpoint", func(f *Fleet) {
			f.Services[0].Dispatch, f.Services[0].Choices.Accept.Load = DispatchChoices, AcceptByEndpoint
		}, "services[0].choices.accept.load", "load.endpoint"},
		{"history without candidates", func(f *Fleet) { f.Services[0].Affinity = AffinityHistory }, "services[0].affinity", "dispatch: choices"},
		{"history without second chance", func(f *Fleet) {
			f.Services[0].Dispatch, f.Services[0].Affinity, f.Services[0].Fallback = DispatchChoices, AffinityHistory, FallbackHash
		}, "services[0].fallback", "second-chance"},
	})
}
