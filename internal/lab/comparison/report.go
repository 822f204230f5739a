package comparison

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/plot"
)

// Names of the files of a comparison.
const (
	fileResult = "results.json"
	fileTable  = "table.txt"
	fileRate   = "broken.svg" // against the rate of changes
	fileCost   = "cost.svg"   // CPU time beside latency
)

// Write writes the results into their directory: as JSON, as a table, and as diagrams of what there is.
func (r *Result) Write(directory string) error {
	var numbers, table bytes.Buffer
	if err := command.WriteJSON(&numbers, r); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	r.Print(&table)
	files := map[string][]byte{fileResult: numbers.Bytes(), fileTable: table.Bytes()}
	for name, diagram := range map[string]sim.Diagram{fileRate: r.byRate(), fileCost: r.byCost()} {
		var picture bytes.Buffer
		switch err := plot.SVG(&picture, []sim.Diagram{diagram}); {
		case errors.Is(err, plot.ErrNothing):
		case err != nil:
			return fmt.Errorf("draw %s: %w", name, err)
		default:
			files[name] = picture.Bytes()
		}
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(directory, name), text, 0o644); err != nil {
			return fmt.Errorf("write results: %w", err)
		}
	}
	return nil
}

// byRate has a curve for each contender: connections broken by minute and hundred, by changes a minute.
func (r *Result) byRate() sim.Diagram {
	diagram := sim.Diagram{Name: "rate", Title: "Broken by changes of servers and balancers", X: "changes a minute", Y: "% of connections broken by minute"}
	for _, row := range r.Contenders {
		curve := sim.Curve{Name: row.Name}
		for _, m := range row.Steps {
			if m.ChangesPerMinute > 0 && m.Alive > 0 && m.Seconds > 0 {
				curve.Points = append(curve.Points, sim.Place{X: m.ChangesPerMinute, Y: sim.Estimate{Mean: 100 * float64(m.Broken) / float64(m.Alive) * 60 / m.Seconds}})
			}
		}
		if len(curve.Points) > 0 {
			slices.SortFunc(curve.Points, func(a, b sim.Place) int { return int(a.X - b.X) })
			diagram.Series = append(diagram.Series, curve)
		}
	}
	return diagram
}

// byCost has a point for each contender.
func (r *Result) byCost() sim.Diagram {
	diagram := sim.Diagram{Name: "cost", Title: "CPU time beside latency", X: "CPU seconds of the machine, for 100,000 requests", Y: "p99 in ms, at full speed"}
	for _, row := range r.Contenders {
		if row.Cost != nil {
			diagram.Series = append(diagram.Series, sim.Curve{Name: row.Name, Points: []sim.Place{{X: row.Cost.Total, Y: sim.Estimate{Mean: row.Cost.P99}}}})
		}
	}
	return diagram
}
