package report

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"io"
	"strings"
	texttemplate "text/template"

	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/plot"
)

// About tells where results come from.
type About struct {
	Command string // that gives the same results
}

var (
	//go:embed report.html.tmpl
	htmlText string
	//go:embed report.md.tmpl
	markdownText string

	page = htmltemplate.Must(htmltemplate.New("report").Funcs(htmltemplate.FuncMap{
		"ours": Ours, "band": band, "paper": paper, "seeds": seeds, "tally": tally, "verdicts": verdicts, "sentence": sentence, "notes": notes, "class": class,
	}).Parse(htmlText))
	markdown = texttemplate.Must(texttemplate.New("report").Funcs(texttemplate.FuncMap{
		"ours": Ours, "paper": paper, "fromPaper": fromPaper, "published": published, "mark": mark, "tally": tally, "sentence": sentence, "cell": cell,
	}).Parse(markdownText))
)

// HTML writes results as one page that needs nothing else: pictures are in it.
func HTML(out io.Writer, results []sim.Result, about About) error {
	return write(out, page, results, about, func(_ sim.Result, svg []byte) any {
		return htmltemplate.HTML(svg[max(0, bytes.Index(svg, []byte("<svg"))):]) // without the XML declaration
	})
}

// Markdown writes results as Markdown. Their pictures are looked for in a folder, under the names of PictureName.
func Markdown(out io.Writer, results []sim.Result, about About, folder string) error {
	return write(out, markdown, results, about, func(r sim.Result, svg []byte) any {
		if svg == nil {
			return ""
		}
		return folder + "/" + PictureName(r)
	})
}

// write writes results by a template, with what stands for the picture of each.
func write(out io.Writer, template interface{ Execute(io.Writer, any) error }, results []sim.Result, about About, picture func(sim.Result, []byte) any) error {
	type section struct {
		sim.Result
		Picture any
	}
	content := struct {
		About
		Results  []sim.Result
		Sections []section
	}{About: about, Results: results}
	for _, r := range results {
		svg, err := Picture(r)
		if err != nil {
			return err
		}
		content.Sections = append(content.Sections, section{r, picture(r, svg)})
	}
	return template.Execute(out, content)
}

// Picture draws the diagrams of a result as an SVG document; it is empty when there is nothing to draw.
func Picture(r sim.Result) ([]byte, error) {
	var out bytes.Buffer
	if err := plot.SVG(&out, r.Diagrams); errors.Is(err, plot.ErrNothing) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("picture of %s: %w", r.Experiment, err)
	}
	return out.Bytes(), nil
}

// PictureName is the name of the file that holds the picture of a result.
func PictureName(r sim.Result) string { return r.Experiment + ".svg" }

// class is the verdict as a class of CSS.
func class(v sim.Verdict) string { return strings.ToLower(string(v)) }

// mark names a verdict that is not PASS, and says why.
func mark(f sim.Finding) string {
	switch {
	case f.Verdict == sim.Pass:
		return ""
	case !doubtful(f) || f.Note == "":
		return ", **" + string(f.Verdict) + "**"
	}
	return ", **" + string(f.Verdict) + "**: " + f.Note
}

// cell is a text within a table of Markdown.
func cell(text string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(text)
}
