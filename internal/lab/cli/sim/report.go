// ballast-lab sim report.
package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/report"
)

func reporting() *cobra.Command {
	var flags simFlags
	var folder, markdown, from string
	cmd := &cobra.Command{
		Use:   "report [EXPERIMENT...]",
		Short: "Run experiments and write the results as a page with plots and tables",
		RunE: func(cmd *cobra.Command, names []string) error {
			if folder == "" && markdown == "" {
				return command.Usage("write a report: nowhere to: give -o DIR or --markdown FILE")
			}
			if len(names) == 0 {
				names = []string{sim.All}
			}
			results, err := resultsOf(cmd, &flags, names, from)
			if len(results) == 0 {
				return err
			}
			if folder != "" {
				err = errors.Join(err, writePage(folder, results, about("-o "+folder, names, results)))
			}
			if markdown != "" {
				err = errors.Join(err, writeMarkdown(markdown, results, about("--markdown "+markdown, names, results)))
			}
			return errors.Join(err, failures(results))
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVarP(&folder, "output", "o", "", "write the page into this `DIR`")
	cmd.Flags().StringVar(&markdown, "markdown", "", "write Markdown into this `FILE`")
	cmd.Flags().StringVar(&from, "from", "", "take the results of this `FILE` of JSON")
	return cmd
}

// resultsOf runs experiments, or takes those of an earlier run from a file.
func resultsOf(cmd *cobra.Command, flags *simFlags, names []string, from string) ([]sim.Result, error) {
	var stored, results []sim.Result
	if from != "" {
		text, err := os.ReadFile(from)
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		if err := json.Unmarshal(text, &stored); err != nil {
			return nil, fmt.Errorf("read results of %s: %w", from, err)
		}
	}
	plan, err := flags.plan(names)
	if err != nil {
		return nil, err
	}
	if from == "" {
		return simulate(cmd.Context(), plan)
	}
	for _, experiment := range plan.Experiments {
		for _, result := range stored {
			if result.Experiment == experiment.Name && len(result.Seeds) > 0 {
				results = append(results, result)
			}
		}
	}
	if len(results) == 0 {
		return nil, fmt.Errorf("read results of %s: none of %s is there: run them", from, strings.Join(names, ", "))
	}
	return results, nil
}

// about names the command that gives these results again.
func about(destination string, names []string, results []sim.Result) report.About {
	words := append([]string{"ballast-lab sim report", destination}, names...)
	seeds := results[0].Seeds
	if !slices.ContainsFunc(results, func(r sim.Result) bool { return len(r.Seeds) != len(seeds) }) {
		words = append(words, fmt.Sprintf("--seeds %d", len(seeds)))
	}
	if seeds[0] != 1 {
		words = append(words, fmt.Sprintf("--seed %d", seeds[0]))
	}
	return report.About{Command: strings.Join(words, " ")}
}

func writePage(folder string, results []sim.Result, about report.About) error {
	var page, numbers bytes.Buffer
	if err := errors.Join(report.HTML(&page, results, about), command.WriteJSON(&numbers, results)); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return writeFiles(folder, map[string][]byte{"index.html": page.Bytes(), "results.json": numbers.Bytes()})
}

func writeMarkdown(name string, results []sim.Result, about report.About) error {
	folder, base := filepath.Split(name)
	pictures := strings.TrimSuffix(base, filepath.Ext(base))
	var text bytes.Buffer
	if err := report.Markdown(&text, results, about, pictures); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	files := map[string][]byte{base: text.Bytes()}
	for _, result := range results {
		picture, err := report.Picture(result)
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		if picture != nil {
			files[filepath.Join(pictures, report.PictureName(result))] = picture
		}
	}
	return writeFiles(folder, files)
}

// writeFiles writes files, by path within a folder, and makes the folders that they need.
func writeFiles(folder string, files map[string][]byte) error {
	for name, text := range files {
		name = filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	return nil
}
