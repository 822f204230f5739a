// Package plot draws the diagrams of results: curves with confidence intervals, as SVG or PNG.
package plot

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// Size of one diagram.
const (
	width  = 17 * vg.Centimeter
	height = 10 * vg.Centimeter
	margin = 3 * vg.Millimeter
)

// ErrNothing says that there is nothing to draw.
var ErrNothing = errors.New("there is nothing to draw")

// SVG draws diagrams, one below the other, as one SVG document.
func SVG(out io.Writer, diagrams []sim.Diagram) error {
	plots, err := layOut(diagrams)
	if err != nil {
		return err
	}
	canvas := vgsvg.NewWith(vgsvg.UseWH(width, height*vg.Length(len(plots))))
	var text bytes.Buffer
	if err := paint(&text, canvas, draw.New(canvas), plots); err != nil {
		return err
	}
	// Letters of these fonts are as wide as those that the text was laid out for, which most readers do not have.
	_, err = out.Write(bytes.ReplaceAll(text.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")))
	return err
}

// PNG draws diagrams, one below the other, as one image.
func PNG(out io.Writer, diagrams []sim.Diagram) error {
	plots, err := layOut(diagrams)
	if err != nil {
		return err
	}
	canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height*vg.Length(len(plots))), vgimg.UseDPI(144))}
	return paint(out, canvas, draw.New(canvas), plots)
}

func paint(out io.Writer, canvas io.WriterTo, area draw.Canvas, plots []*plot.Plot) error {
	tiles := draw.Tiles{Cols: 1, Rows: len(plots)}
	for i, p := range plots {
		p.Draw(draw.Crop(tiles.At(area, 0, i), margin, -margin, margin, -margin))
	}
	_, err := canvas.WriteTo(out)
	return err
}

// layOut returns a plot for each diagram that has points on its axes, at least one.
func layOut(diagrams []sim.Diagram) (plots []*plot.Plot, err error) {
	for _, diagram := range diagrams {
		p, err := diagramPlot(diagram)
		if err == nil {
			plots = append(plots, p)
		} else if !errors.Is(err, ErrNothing) {
			return nil, fmt.Errorf("draw %q: %w", diagram.Title, err)
		}
	}
	if len(plots) == 0 {
		return nil, ErrNothing
	}
	return plots, nil
}

// diagramPlot lays out a diagram, or returns ErrNothing when none of its points has a place on its axes.
func diagramPlot(diagram sim.Diagram) (*plot.Plot, error) {
	p := newPlot(diagram)
	limits := limitsOf(diagram)
	if limits.empty() {
		return nil, ErrNothing
	}
	for i, curve := range diagram.Series {
		points := place(curve, diagram, limits)
		if len(points.XYs) == 0 {
			continue
		}
		if err := addCurve(p, curve.Name, points, inks[i%len(inks)], dashes[i/len(inks)%len(dashes)]); err != nil {
			return nil, err
		}
	}
	limits.apply(p, diagram)
	return p, nil
}

// dense is the number of points from which on intervals are drawn as an area around the curve: bars would hide it.
const dense = 40

func addCurve(p *plot.Plot, name string, points placed, ink color.RGBA, dash []vg.Length) error {
	line, marks, err := plotter.NewLinePoints(points.XYs)
	if err != nil {
		return err
	}
	line.Color, line.Width, line.Dashes = ink, vg.Points(1.2), dash
	marks.Color, marks.Radius, marks.Shape = ink, vg.Points(2.2), draw.CircleGlyph{}
	if len(points.XYs) >= dense {
		area, err := plotter.NewPolygon(points.outline())
		if err != nil {
			return err
		}
		area.Color, area.LineStyle.Width = color.NRGBA{ink.R, ink.G, ink.B, 0x30}, 0
		p.Add(area, line)
		p.Legend.Add(name, line)
		return nil
	}
	intervals, err := plotter.NewYErrorBars(points)
	if err != nil {
		return err
	}
	intervals.Color, intervals.CapWidth = ink, vg.Points(4)
	p.Add(line, marks, intervals)
	p.Legend.Add(name, line, marks)
	return nil
}

// inks are told apart by the colour-blind too (Okabe and Ito, without yellow, which is pale on white).
var inks = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff},
	{0xcc, 0x79, 0xa7, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x22, 0x22, 0x22, 0xff},
}

// dashes tell curves of the same ink apart.
var dashes = [][]vg.Length{nil, {vg.Points(5), vg.Points(2)}, {vg.Points(1.5), vg.Points(2)}}

func newPlot(diagram sim.Diagram) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = diagram.Title, diagram.X, diagram.Y
	p.BackgroundColor = color.White // readers' pages may be dark
	p.Title.Padding = vg.Points(6)
	p.Legend.Top, p.Legend.Padding = true, vg.Points(1)
	sans := func(face *font.Font, size float64) {
		face.Variant, face.Size = "Sans", vg.Points(size)
	}
	sans(&p.Title.TextStyle.Font, 11)
	sans(&p.X.Label.TextStyle.Font, 10)
	sans(&p.Y.Label.TextStyle.Font, 10)
	sans(&p.X.Tick.Label.Font, 9)
	sans(&p.Y.Tick.Label.Font, 9)
	sans(&p.Legend.TextStyle.Font, 9)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe4}, color.Gray{0xe4}
	p.Add(grid)
	return p
}
