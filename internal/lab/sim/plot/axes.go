package plot

import (
	"fmt"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// placed are points with their intervals, as the plotters want them.
type placed struct {
	plotter.XYs
	plotter.YErrors
}

// place returns the points of a curve that have a place on the diagram's axes. Intervals are cut where the axis ends.
func place(curve sim.Curve, diagram sim.Diagram, limits limits) (points placed) {
	for _, point := range curve.Points {
		if !fits(point, diagram) {
			continue
		}
		below := min(point.Y.Half, point.Y.Mean-limits.y.low)
		points.XYs = append(points.XYs, plotter.XY{X: point.X, Y: point.Y.Mean})
		points.YErrors = append(points.YErrors, struct{ Low, High float64 }{below, point.Y.Half})
	}
	return points
}

// outline goes along the upper ends of the intervals and back along the lower ones.
func (p placed) outline() plotter.XYs {
	var line plotter.XYs
	for i, point := range p.XYs {
		line = append(line, plotter.XY{X: point.X, Y: point.Y + p.YErrors[i].High})
	}
	for i := len(p.XYs) - 1; i >= 0; i-- {
		line = append(line, plotter.XY{X: p.XYs[i].X, Y: p.XYs[i].Y - p.YErrors[i].Low})
	}
	return line
}

// Numbers of extreme size, and on a logarithmic axis those that are as close to 0, have no place: what is computed from the ends of an axis must be
// neither infinite nor 0.
const extreme = 1e100

// fits reports whether a point has a place on a diagram's axes.
func fits(point sim.Place, diagram sim.Diagram) bool {
	on := func(v float64, logarithmic bool) bool {
		return math.Abs(v) < extreme && (!logarithmic || v > 1/extreme)
	}
	return on(point.X, diagram.LogX) && on(point.Y.Mean, diagram.LogY) && point.Y.Half < extreme
}

// limits are the ends of the axes.
type limits struct{ x, y span }

type span struct{ low, high float64 }

func (s *span) add(v float64) { s.low, s.high = min(s.low, v), max(s.high, v) }

func limitsOf(diagram sim.Diagram) limits {
	nothing := span{math.Inf(1), math.Inf(-1)}
	l, means := limits{nothing, nothing}, nothing
	for _, curve := range diagram.Series {
		for _, point := range curve.Points {
			if fits(point, diagram) {
				l.x.add(point.X)
				means.add(point.Y.Mean)
				l.y.add(point.Y.Mean)
				l.y.add(point.Y.Mean + point.Y.Half)
				if !diagram.LogY {
					l.y.add(point.Y.Mean - point.Y.Half)
				}
			}
		}
	}
	if l.empty() {
		return l
	}
	l.x = l.x.rounded(diagram.LogX)
	l.y = l.y.rounded(diagram.LogY)
	// Lengths are compared from 0, unless that would hide the differences; and what is never negative in the mean is not in the interval, either.
	if !diagram.LogY && (l.y.low > 0 && l.y.low < l.y.high/2 || l.y.low < 0 && means.low >= 0) {
		l.y.low = 0
	}
	return l
}

func (l limits) empty() bool { return l.x.low > l.x.high }

// rounded widens a span that is a point, and one of a logarithmic axis to whole steps of 1, 2, 5.
func (s span) rounded(logarithmic bool) span {
	if logarithmic {
		return span{step(s.low, false), step(s.high*1.0001, true)}
	}
	if s.low == s.high {
		return span{s.low - 0.5, s.high + 0.5}
	}
	return s
}

// step returns the next of 1, 2, 5 times a power of ten, at or below v, or above it.
func step(v float64, up bool) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(v)))
	steps := []float64{1, 2, 5, 10}
	if up {
		for _, s := range steps {
			if s*decade > v {
				return s * decade
			}
		}
	}
	below := decade
	for _, s := range steps {
		if s*decade <= v {
			below = s * decade
		}
	}
	return below
}

func (l limits) apply(p *plot.Plot, diagram sim.Diagram) {
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = l.x.low, l.x.high, l.y.low, l.y.high
	p.X.Tick.Marker, p.Y.Tick.Marker = linearTicks{}, linearTicks{}
	if diagram.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, logTicks{}
	}
	if diagram.LogY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, logTicks{}
	}
	// Legends would hide the curves: make room for them above.
	if room := min(0.02+float64(len(diagram.Series))*0.065, 0.7); !diagram.LogY {
		p.Y.Max += room * (p.Y.Max - p.Y.Min)
	} else {
		p.Y.Max *= math.Pow(p.Y.Max/p.Y.Min, room)
	}
}

// linearTicks labels about six round numbers.
type linearTicks struct{}

// Ticks implements plot.Ticker.
func (linearTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	distance := step((high-low)/7, true)
	first := math.Ceil(low/distance - 1e-9)
	for n := range 9 { // counted in whole numbers: next to first, 1 may be nothing
		i := first + float64(n)
		if !(i*distance <= high+1e-9*distance) {
			break
		}
		digits := max(0, -int(math.Floor(math.Log10(distance)+1e-9)))
		at := i*distance + 0 // not -0
		ticks = append(ticks, plot.Tick{Value: at, Label: strconv.FormatFloat(at, 'f', digits, 64)})
	}
	return ticks
}

// logTicks labels 1, 2, 5 times powers of ten, or only the powers when they are many.
type logTicks struct{}

// Ticks implements plot.Ticker.
func (logTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	first, last := int(math.Floor(math.Log10(low))), int(math.Ceil(math.Log10(high)))
	for exponent := first; exponent <= last; exponent++ {
		for digit := 1; digit < 10; digit++ {
			at := float64(digit) * math.Pow(10, float64(exponent))
			if at < low*0.9999 || at > high*1.0001 {
				continue
			}
			label := ""
			if digit == 1 && (last-first < 9 || exponent%2 == 0) || last-first < 4 && (digit == 2 || digit == 5) {
				label = fmt.Sprintf("%g", at)
			}
			ticks = append(ticks, plot.Tick{Value: at, Label: label})
		}
	}
	return ticks
}
