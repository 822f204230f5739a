package tracing

import (
	"testing"
	"time"
)

func TestASampleThatIsAdjustedGivesAboutSoManyEvents(t *testing.T) {
	s := sampleFor(20_000, 100*time.Millisecond)
	if s.oneOf != 400 {
		t.Errorf("200,000 packets a second: one of %d", s.oneOf)
	}
	for _, step := range []struct{ packets, least, most float64 }{{200_000, 490, 510}, {2_000_000, 490, 510}, {50_000, 450, 510}, {100, 100, 100}} {
		events := 0.0
		for range 12 { // seconds
			events = step.packets / float64(s.oneOf)
			s.adjust(uint32(events))
		}
		if events < step.least || events > step.most {
			t.Errorf("of %.0f packets a second there are %.0f events", step.packets, events)
		}
	}
}

func TestASampleThatIsAskedForStays(t *testing.T) {
	for _, s := range []sample{{}, {oneOf: 64}} {
		before := s
		if s.adjust(100_000); s != before {
			t.Errorf("%+v became %+v", before, s)
		}
	}
}

func TestWhereNothingComesAllPacketsAreTheSample(t *testing.T) {
	if s := sampleFor(0, lookTime); s.oneOf != 1 {
		t.Errorf("one of %d", s.oneOf)
	}
}
