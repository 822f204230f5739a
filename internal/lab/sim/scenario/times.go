package scenario

import (
	"math"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

// Implementation constants of lifetimes and of work.
const (
	quantiles    = 1000   // points of times that a formula gives
	lastQuantile = 0.9999 // where heavy tails are cut off
	usualAlpha   = 1.5
	maxPoints    = 65_000 // of a distribution: what the sampler takes
	leastTime    = time.Microsecond
)

var (
	shapes     = []string{"web", "facebook", "exponential", "pareto", "constant"}
	workShapes = []string{"exponential", "pareto", "constant", "bimodal"}
)

// described is how a file describes times.
type described struct {
	shape             string
	mean, short, long int64 // ns
	alpha, part       float64
	file, column      string
}

// times reads lifetimes, or how much work there is: a shape with what belongs to it, or a file.
func (r *reader) times(times *data.Distribution, shapes []string) yamltree.Value {
	return func(node *yaml.Node, path string) {
		d := described{column: "seconds", alpha: usualAlpha}
		fields := map[string]yamltree.Value{
			"shape":  r.choice(&d.shape, shapes),
			"mean":   r.duration(&d.mean, leastTime),
			"alpha":  r.number(&d.alpha, 1.05, 100),
			"file":   r.text(&d.file),
			"column": r.text(&d.column),
		}
		if slices.Contains(shapes, "bimodal") {
			fields["short"], fields["long"] = r.duration(&d.short, leastTime), r.duration(&d.long, leastTime)
			fields["part"] = r.number(&d.part, 0, 1)
		}
		r.Mapping(node, path, fields)
		if r.Failed() == 0 && r.checkTimes(d, path) {
			*times = r.described(d, path)
		}
	}
}

// checkTimes objects to keys that do not belong together.
func (r *reader) checkTimes(d described, path string) bool {
	before := r.Failed()
	if (d.shape == "") == (d.file == "") {
		r.FailAt(path, "give either shape or file", "neither, or both")
	}
	if r.Has(path+".alpha") && d.shape != "pareto" {
		r.FailAt(path+".alpha", "remove it", "only pareto has one")
	}
	if r.Has(path+".column") && d.file == "" {
		r.FailAt(path+".column", "remove it", "only a file has columns")
	}
	for _, key := range []string{".short", ".long", ".part"} {
		if given := r.Has(path + key); given != (d.shape == "bimodal") {
			r.FailAt(path+key, "give short, long and part with bimodal, and with nothing else", "missing, or of no use")
		}
	}
	switch d.shape {
	case "bimodal":
		if d.mean != 0 {
			r.FailAt(path+".mean", "remove it", "that of bimodal follows from short, long and part")
		}
	case "exponential", "pareto", "constant":
		if d.mean == 0 {
			r.FailAt(path, "give mean", "%s without a mean", d.shape)
		}
	}
	return r.Failed() == before
}

// described returns times in seconds.
func (r *reader) described(d described, path string) (times data.Distribution) {
	switch {
	case d.file != "":
		times = r.timesOf(d.file, d.column, path+".file")
	case d.shape == "bimodal":
		return data.Distribution{Points: []data.Point{
			{Value: float64(d.short) / nsPerSecond, UpTo: 1 - d.part}, {Value: float64(d.long) / nsPerSecond, UpTo: 1},
		}}
	default:
		times = shaped(d.shape, d.alpha)
	}
	if d.mean > 0 && !times.IsZero() {
		times = times.WithMean(float64(d.mean) / nsPerSecond)
	}
	return times
}

// shaped returns times in seconds; those of a formula have a mean of about 1.
func shaped(shape string, alpha float64) data.Distribution {
	switch shape {
	case "web":
		return data.WebDurations().Scaled(1e-6)
	case "facebook":
		return data.FacebookDurations().Scaled(1e-3)
	case "constant":
		return data.Distribution{Points: []data.Point{{Value: 1, UpTo: 1}}}
	case "pareto":
		return byQuantiles(func(p float64) float64 { return math.Pow(1-p, -1/alpha) })
	}
	return byQuantiles(func(p float64) float64 { return -math.Log1p(-p) })
}

// byQuantiles puts points where a quantile function has them: evenly, and then ever closer to 1.
func byQuantiles(quantile func(p float64) float64) data.Distribution {
	d := data.Distribution{Smooth: true, Points: []data.Point{{Value: quantile(0), UpTo: 0}}}
	for i := 1; i < quantiles; i++ {
		p := float64(i) / quantiles
		d.Points = append(d.Points, data.Point{Value: quantile(p), UpTo: p})
	}
	for rest := 0.5 / quantiles; rest > 1-lastQuantile; rest /= 1.1 {
		d.Points = append(d.Points, data.Point{Value: quantile(1 - rest), UpTo: 1 - rest})
	}
	d.Points = append(d.Points, data.Point{Value: quantile(lastQuantile), UpTo: 1})
	return d
}

// timesOf returns how the values of a column are distributed, in seconds.
func (r *reader) timesOf(name, column, path string) (d data.Distribution) {
	rows := r.columns(name, path, column)
	values := make([]float64, 0, len(rows))
	for _, row := range rows {
		values = append(values, max(row[0], leastTime.Seconds()))
	}
	slices.Sort(values)
	step := max(1, (len(values)+maxPoints-1)/maxPoints)
	for i := step - 1; i < len(values); i += step {
		d.Points = append(d.Points, data.Point{Value: values[i], UpTo: float64(i+1) / float64(len(values))})
	}
	if n := len(values); n > 0 && d.Points[len(d.Points)-1].UpTo < 1 {
		d.Points = append(d.Points, data.Point{Value: values[n-1], UpTo: 1})
	}
	return d
}
