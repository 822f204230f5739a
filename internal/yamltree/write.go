package yamltree

import (
	"bytes"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// quoted are texts that readers of YAML 1.1 take for something else: switches, and numbers to the base of 60.
var quoted = regexp.MustCompile(`^(?i:y|n|yes|no|on|off)$|^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$`)

// FromJSON returns a JSON value as YAML: keys keep their order, lists of single values are on one line. The error is that of invalid JSON.
func FromJSON(text []byte) ([]byte, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil { // JSON is YAML
		return nil, err
	}
	unfold(&document)
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&document); err != nil {
		return nil, err
	}
	return out.Bytes(), encoder.Close()
}

// unfold takes the brackets and quotes away that YAML does not need. What is written quotes others itself.
func unfold(node *yaml.Node) {
	single := node.Kind == yaml.SequenceNode
	for _, child := range node.Content {
		unfold(child)
		single = single && child.Kind == yaml.ScalarNode
	}
	switch {
	case single, node.Kind == yaml.MappingNode && len(node.Content) == 0: // as they are
	case node.Kind == yaml.ScalarNode && (strings.Contains(node.Value, "\n") || quoted.MatchString(node.Value)):
	default:
		node.Style = 0
	}
}
