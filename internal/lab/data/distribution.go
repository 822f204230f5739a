package data

// A Distribution is given by points of its cumulative distribution function, in rising order of both. The zero value is none.
type Distribution struct {
	Points []Point `json:"points,omitempty"`
	Smooth bool    `json:"smooth,omitempty"` // values between points occur too; else only those of the points
	Scale  float64 `json:"scale,omitempty"`  // of all values; 0 = 1
}

// A Point says that values up to Value have probability UpTo.
type Point struct {
	Value float64 `json:"value"`
	UpTo  float64 `json:"up_to"`
}

// IsZero reports whether there is no distribution.
func (d *Distribution) IsZero() bool { return len(d.Points) == 0 }

// At is the quantile of a probability in [0, 1).
func (d *Distribution) At(probability float64) float64 {
	previous := d.Points[0]
	for _, point := range d.Points {
		if probability < point.UpTo {
			if !d.Smooth || point.UpTo == previous.UpTo {
				return point.Value * d.scale()
			}
			share := (probability - previous.UpTo) / (point.UpTo - previous.UpTo)
			return (previous.Value + max(share, 0)*(point.Value-previous.Value)) * d.scale()
		}
		previous = point
	}
	return previous.Value * d.scale()
}

// Mean is the expected value.
func (d *Distribution) Mean() float64 {
	sum, previous := 0.0, Point{Value: d.Points[0].Value}
	for _, point := range d.Points {
		value := point.Value
		if d.Smooth {
			value = (previous.Value + point.Value) / 2
		}
		sum += (point.UpTo - previous.UpTo) * value
		previous = point
	}
	return sum * d.scale()
}

// Scaled multiplies all values.
func (d Distribution) Scaled(by float64) Distribution {
	d.Scale = d.scale() * by
	return d
}

// WithMean scales the distribution so that its mean is as given.
func (d Distribution) WithMean(mean float64) Distribution { return d.Scaled(mean / d.Mean()) }

func (d *Distribution) scale() float64 {
	if d.Scale == 0 {
		return 1
	}
	return d.Scale
}

// Remaining is how long what is seen at a random moment still lasts, if whole lives have distribution d: the density at x is P(life > x) /
// mean. Exact where d has steps; where it is smooth, a span between points is cut into parts within which the density counts as constant.
func (d Distribution) Remaining() Distribution {
	const remainingParts = 64
	result := Distribution{Points: []Point{{}}, Smooth: true, Scale: d.Scale}
	mean := d.Mean() / d.scale()
	previous, area := Point{}, 0.0
	add := func(to Point, alive float64) {
		area += (to.Value - result.Points[len(result.Points)-1].Value) * alive
		result.Points = append(result.Points, Point{Value: to.Value, UpTo: min(area/mean, 1)})
	}
	for i, point := range d.Points {
		if !d.Smooth || i == 0 {
			add(point, 1-previous.UpTo)
		} else {
			for part := 1; part <= remainingParts; part++ {
				at, middle := float64(part)/remainingParts, (float64(part)-0.5)/remainingParts
				add(Point{Value: previous.Value + at*(point.Value-previous.Value)}, 1-previous.UpTo-middle*(point.UpTo-previous.UpTo))
			}
		}
		previous = point
	}
	result.Points[len(result.Points)-1].UpTo = 1
	return result
}
