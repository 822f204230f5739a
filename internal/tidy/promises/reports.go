package promises

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// Report is a situation that users of another product have reported in public, and the test that shows it here, without the fault.
type Report struct {
	Issue string // owner/repository#number
	What  string // happened there
	File  string // of the test, relative to the repository
	Test  string
}

var (
	reported  = regexp.MustCompile(`^([\w.-]+/[\w.-]+#\d+) \(([^()]+)\)$`)
	separator = regexp.MustCompile(`\), `)
)

// Reports returns those that tests name in comments before them: "// Public: owner/repository#number (what happened there), ...".
func Reports(file string, source []byte) ([]Report, error) {
	var found []Report
	err := before(file, source, "Public:", "lists of reports", func(function, list string) error {
		list, ended := strings.CutSuffix(list, ".")
		if !ended || !testName.MatchString(function) {
			return errors.New("a list of reports stands before a test and ends in a full stop")
		}
		for _, one := range strings.Split(separator.ReplaceAllString(list, ")\n"), "\n") {
			parts := reported.FindStringSubmatch(one)
			if parts == nil {
				return fmt.Errorf("%q is not OWNER/REPOSITORY#NUMBER (what happened there)", one)
			}
			found = append(found, Report{parts[1], parts[2], file, function})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// String is a row of a table: number, what happened there, test here.
func (r Report) String() string {
	return fmt.Sprintf("%-36s %s\n    go test ./%s -run '^%s$'", r.Issue, r.What, path.Dir(r.File), r.Test)
}
