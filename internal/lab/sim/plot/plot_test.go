package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

func curve(name string, ys ...float64) sim.Curve {
	c := sim.Curve{Name: name}
	for i, y := range ys {
		c.Points = append(c.Points, sim.Place{X: float64(i), Y: sim.Estimate{Mean: y, Half: math.Abs(y) / 10, Runs: 2}})
	}
	return c
}

func TestDrawingsAreTheSameEveryTime(t *testing.T) {
	diagrams := []sim.Diagram{{Title: "one", X: "x", Y: "y", Series: []sim.Curve{curve("a", 1, 2, 3), curve("b", 3, 2, 1)}}, {LogY: true, Series: []sim.Curve{curve("c", 0, 10, 1e6)}}}
	var first, second bytes.Buffer
	if err := errors.Join(SVG(&first, diagrams), SVG(&second, diagrams)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("they differ")
	}
}

func TestSVGIsWellFormedWhateverTheNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.OneOf(rapid.SampledFrom([]float64{0, 1, -1, 1e-9, 1e12, 5e-324, 1e-300, 1e-99, 1e99, math.MaxFloat64, -math.MaxFloat64, math.Inf(1), math.NaN()}), rapid.Float64Range(-1e6, 1e6), rapid.Float64Range(1e-6, 2e-6))
		diagram := sim.Diagram{Title: rapid.StringOf(rapid.SampledFrom([]rune("a <&>\"é%"))).Draw(t, "title"), LogX: rapid.Bool().Draw(t, "log x"), LogY: rapid.Bool().Draw(t, "log y")}
		for range rapid.IntRange(0, 9).Draw(t, "curves") {
			diagram.Series = append(diagram.Series, curve("<&>", rapid.SliceOfN(numbers, 0, 5).Draw(t, "y")...))
		}
		var out bytes.Buffer
		if err := SVG(&out, []sim.Diagram{diagram}); errors.Is(err, ErrNothing) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		decoder := xml.NewDecoder(&out)
		for {
			if _, err := decoder.Token(); err == io.EOF {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestPNGIsAnImage(t *testing.T) {
	var out bytes.Buffer
	if err := PNG(&out, []sim.Diagram{{Series: []sim.Curve{curve("a", 1, 2)}}}); err != nil {
		t.Fatal(err)
	}
	if picture, err := png.Decode(&out); err != nil || picture.Bounds().Dx() < 500 {
		t.Error(err)
	}
}

func TestNothingToDrawIsAnError(t *testing.T) {
	for _, diagrams := range [][]sim.Diagram{nil, {{}}, {{LogY: true, Series: []sim.Curve{curve("zero", 0, 0)}}}} {
		if err := SVG(io.Discard, diagrams); !errors.Is(err, ErrNothing) {
			t.Errorf("%v: %v", diagrams, err)
		}
	}
}

func TestAxesOfNumbersThatHardlyDifferHaveAnEnd(t *testing.T) {
	for _, low := range []float64{0, 1, 1e12, -1e12, 1e299} {
		for _, high := range []float64{math.Nextafter(low, math.Inf(1)), low + math.Abs(low)*1e-15, low + 1e-300} {
			if ticks := (linearTicks{}).Ticks(low, high); len(ticks) > 9 {
				t.Errorf("%d ticks from %g to %g", len(ticks), low, high)
			}
		}
	}
}

func TestStepsAreOneTwoFive(t *testing.T) {
	for v, want := range map[float64][2]float64{1: {1, 2}, 3: {2, 5}, 0.07: {0.05, 0.1}, 600: {500, 1000}} {
		if below, above := step(v, false), step(v, true); math.Abs(below/want[0]-1) > 1e-9 || math.Abs(above/want[1]-1) > 1e-9 {
			t.Errorf("%g lies between %g and %g", v, below, above)
		}
	}
}

func TestAxesHaveRoundNumbers(t *testing.T) {
	for want, span := range map[string][2]float64{
		"0 50 100 150":                            {math.Copysign(0, -1), 180},
		"0.10 0.15 0.20 0.25 0.30":                {0.1, 0.3},
		"-2 -1 0 1 2 3":                           {-2.5, 3},
		"1000000 1000001 1000002 1000003 1000004": {1e6, 1e6 + 4},
		"0.00 0.05 0.10 0.15 0.20 0.25 0.30":      {0, 0.301},
	} {
		var labels []string
		for _, tick := range (linearTicks{}).Ticks(span[0], span[1]) {
			labels = append(labels, tick.Label)
		}
		if have := strings.Join(labels, " "); have != want {
			t.Errorf("%v: %s, want %s", span, have, want)
		}
	}
}
