package scenario

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/ballast-lb/ballast/internal/data"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

// Implementation constants of lifetimes.
const (
	maxRows       = 5_000_000
	quantiles     = 1000   // points of lifetimes that a formula gives
	lastQuantile  = 0.9999 // where heavy tails are cut off
	usualAlpha    = 1.5
	maxPoints     = 65_000 // of a distribution: what the sampler takes
	nsPerSecond   = float64(time.Second)
	maxSeconds    = float64(maxLength / time.Second)
	leastLifetime = time.Microsecond
)

var shapes = []string{"web", "facebook", "exponential", "pareto", "constant"}

func (r *reader) traffic(node ast.Node, path string, traffic *Traffic) {
	var connections float64
	traffic.Lifetimes = data.WebDurations().Scaled(1e-6)
	r.Mapping(node, path, map[string]yamltree.Value{
		"rate":        r.number(&traffic.Rate, 0, maxRate),
		"connections": r.number(&connections, 1, maxLive),
		"lifetimes":   func(node ast.Node, path string) { r.lifetimes(node, path, &traffic.Lifetimes) },
		"trace":       func(node ast.Node, path string) { traffic.Trace = r.trace(node, path) },
	})
	if r.Failed() > 0 {
		return
	}
	given := 0
	for _, key := range []string{".rate", ".connections", ".trace"} {
		if r.Has(path + key) {
			given++
		}
	}
	if given != 1 {
		r.FailAt(path, "give one of rate, connections and trace", "%d of them", given)
	}
	if r.Has(path+".trace") && r.Has(path+".lifetimes") {
		r.FailAt(path+".lifetimes", "remove it", "the trace has them")
	}
	if traffic.Trace != nil {
		traffic.Lifetimes = lasting(traffic.Trace)
	}
	if connections > 0 {
		traffic.Rate = connections / traffic.Lifetimes.Mean()
	}
}

// lifetimes reads a shape with its mean, or a file.
func (r *reader) lifetimes(node ast.Node, path string, lifetimes *data.Distribution) {
	var shape, name string
	column, alpha, mean := "seconds", usualAlpha, int64(0)
	r.Mapping(node, path, map[string]yamltree.Value{
		"shape":  r.choice(&shape, shapes),
		"mean":   r.duration(&mean, leastLifetime),
		"alpha":  r.number(&alpha, 1.05, 100),
		"file":   r.text(&name),
		"column": r.text(&column),
	})
	switch {
	case r.Failed() > 0:
	case (shape == "") == (name == ""):
		r.FailAt(path, "give either shape or file", "lifetimes of no kind, or of two")
	case r.Has(path+".alpha") && shape != "pareto":
		r.FailAt(path+".alpha", "remove it", "only pareto has one")
	case r.Has(path+".column") && name == "":
		r.FailAt(path+".column", "remove it", "only a file has columns")
	case name != "":
		*lifetimes = r.lifetimesOf(name, column, path+".file")
		if mean > 0 && !lifetimes.IsZero() {
			*lifetimes = lifetimes.WithMean(float64(mean) / nsPerSecond)
		}
	case shape != "web" && shape != "facebook" && mean == 0:
		r.FailAt(path, "give mean", "how long do %s lifetimes last", shape)
	default:
		*lifetimes = shaped(shape, alpha)
		if mean > 0 {
			*lifetimes = lifetimes.WithMean(float64(mean) / nsPerSecond)
		}
	}
}

// shaped returns lifetimes in seconds; those of a formula have a mean of about 1.
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

// lifetimesOf returns how the values of a column are distributed, in seconds.
func (r *reader) lifetimesOf(name, column, path string) (d data.Distribution) {
	rows := r.columns(name, path, column)
	values := make([]float64, 0, len(rows))
	for _, row := range rows {
		values = append(values, max(row[0], leastLifetime.Seconds()))
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

// trace reads connections: the columns start and duration, in seconds.
func (r *reader) trace(node ast.Node, path string) []Connection {
	name, ok := r.Scalar(node, path)
	if !ok {
		return nil
	}
	var trace []Connection
	for _, row := range r.columns(name, path, "start", "duration") {
		life := max(row[1], leastLifetime.Seconds())
		trace = append(trace, Connection{Start: int64(row[0] * nsPerSecond), Life: int64(life * nsPerSecond)})
	}
	slices.SortStableFunc(trace, func(a, b Connection) int { return cmp.Compare(a.Start, b.Start) })
	return trace
}

// lasting is the longest life of a trace, as a distribution: all that a world of recorded connections wants to know of lifetimes.
func lasting(trace []Connection) data.Distribution {
	longest := slices.MaxFunc(trace, func(a, b Connection) int { return cmp.Compare(a.Life, b.Life) }).Life
	return data.Distribution{Points: []data.Point{{Value: float64(longest) / nsPerSecond, UpTo: 1}}}
}

// columns reads the named columns of a CSV file: numbers of seconds from 0.
func (r *reader) columns(name, path string, columns ...string) (rows [][]float64) {
	text, err := r.open(name)
	if err != nil {
		r.FailAt(path, "give the name of a file, as seen from this one", "%v", err)
		return nil
	}
	reader := csv.NewReader(bytes.NewReader(text))
	reader.Comment, reader.ReuseRecord = '#', true
	at, err := places(reader, columns)
	for err == nil {
		var record []string
		if record, err = reader.Read(); err != nil {
			break
		}
		row := make([]float64, len(at))
		for i, column := range at {
			row[i], err = strconv.ParseFloat(record[column], 64)
			if err != nil || !(row[i] >= 0 && row[i] <= maxSeconds) {
				line, _ := reader.FieldPos(column)
				r.FailAt(path, fmt.Sprintf("give seconds from 0 to %g", maxSeconds), "%s:%d: %s %q is not such a number", name, line, columns[i], record[column])
				return nil
			}
		}
		if rows = append(rows, row); len(rows) > maxRows {
			r.FailAt(path, fmt.Sprintf("give at most %d", maxRows), "%s has more lines", name)
			return nil
		}
	}
	if !errors.Is(err, io.EOF) {
		r.FailAt(path, "write CSV with a line of column names first", "%s: %v", name, err)
		return nil
	}
	if len(rows) == 0 {
		r.FailAt(path, "give at least one", "%s has no lines", name)
	}
	return rows
}

// places reads the line of names and finds columns in it.
func places(reader *csv.Reader, columns []string) (at []int, err error) {
	names, err := reader.Read()
	if err != nil {
		return nil, err
	}
	for _, column := range columns {
		i := slices.Index(names, column)
		if i < 0 {
			return nil, fmt.Errorf("there is no column %q in %q", column, names)
		}
		at = append(at, i)
	}
	return at, nil
}
