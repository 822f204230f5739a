package random

import "github.com/ballast-lb/ballast/internal/lab/data"

// guideCells is how many parts of equal probability a Sampler looks its start up in.
const guideCells = 1024

// Sampler draws from a distribution in constant time, whatever the number of its points: Chen and Asau's guide table (1974).
// It is immutable.
type Sampler struct {
	points []span
	guide  [guideCells]uint16 // first point that a probability of the cell may belong to
}

// span is the part of a distribution up to one point: value = from + slope*(probability - start).
type span struct{ upTo, start, from, slope float64 }

// NewSampler prepares a distribution of at most 65535 points. It panics on one without.
func NewSampler(d data.Distribution) *Sampler {
	if d.IsZero() {
		panic("random.NewSampler: a distribution without points")
	}
	s := &Sampler{}
	previous, scale := d.Points[0], 1.0
	if d.Scale != 0 {
		scale = d.Scale
	}
	previous.UpTo = 0
	for _, point := range d.Points {
		one := span{upTo: point.UpTo, start: previous.UpTo, from: point.Value * scale}
		if d.Smooth && point.UpTo > previous.UpTo {
			one.from = previous.Value * scale
			one.slope = (point.Value - previous.Value) * scale / (point.UpTo - previous.UpTo)
		}
		s.points = append(s.points, one)
		previous = point
	}
	at := 0
	for cell := range s.guide {
		for at < len(s.points)-1 && s.points[at].upTo <= float64(cell)/guideCells {
			at++
		}
		s.guide[cell] = uint16(at)
	}
	return s
}

// At is the quantile of a probability in [0, 1), as data.Distribution.At has it.
func (s *Sampler) At(probability float64) float64 {
	at := int(s.guide[int(probability*guideCells)])
	for at < len(s.points)-1 && probability >= s.points[at].upTo {
		at++
	}
	point := &s.points[at]
	return point.from + point.slope*(probability-point.start)
}
