package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/urfave/cli/v3"
	"go.yaml.in/yaml/v3"
)

// maxFile is the largest configuration file.
const maxFile = 1 << 20

// applyFile sets the flags of c that the file at path names: a mapping of YAML or
// JSON whose keys are names of flags. The command line goes before it.
func applyFile(c *cli.Command, path string) error {
	text, err := readFile(path)
	if err != nil {
		return &usageError{c.FullName(), err}
	}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil // an empty file
	} else if err != nil {
		return wrong(c, "%s: %w", path, err)
	}
	if dec.Decode(new(yaml.Node)) != io.EOF {
		return wrong(c, "%s: the file has a second document", path)
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return wrong(c, "%s: want keys with values, such as \"listen: :4000\"", path)
	}
	pairs := doc.Content[0].Content
	var seen []string
	var mistakes []error
	for i := 0; i+1 < len(pairs); i += 2 {
		key, value := pairs[i], pairs[i+1]
		if slices.Contains(seen, key.Value) {
			mistakes = append(mistakes, wrong(c, "%s:%d: the key %q is given twice", path, key.Line, key.Value))
		} else if err := applyKey(c, key.Value, value); err != nil {
			mistakes = append(mistakes, wrong(c, "%s:%d: %w", path, key.Line, err))
		}
		seen = append(seen, key.Value)
	}
	return errors.Join(mistakes...)
}

// readFile reads a file that is not too large to be a configuration.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s: more than %d bytes", path, maxFile)
	}
	return text, err
}

// applyKey sets the flag that a key of a file names.
func applyKey(c *cli.Command, key string, value *yaml.Node) error {
	var flag cli.Flag
	for _, f := range c.Flags {
		if slices.Contains(f.Names(), key) && key != configFlag && key != "help" {
			flag = f
		}
	}
	if flag == nil {
		if near := suggestion(c, key); near != "" && near != key {
			return fmt.Errorf("unknown key %q; do you mean %q?", key, near)
		}
		return fmt.Errorf("unknown key %q: keys are the names of flags", key)
	}
	if flag.IsSet() {
		return nil
	}
	values := []*yaml.Node{value}
	if value.Kind == yaml.SequenceNode {
		if _, list := flag.(*cli.StringSliceFlag); !list {
			return fmt.Errorf("%s: want one value, not a list", key)
		}
		values = value.Content
	}
	for _, v := range values {
		if v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
			return fmt.Errorf("%s: want a value", key)
		}
		if err := c.Set(key, v.Value); err != nil {
			return fmt.Errorf("%s: %q: %w", key, v.Value, err)
		}
	}
	return nil
}
