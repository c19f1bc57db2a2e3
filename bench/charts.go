package main

import (
	"cmp"
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// chart is a picture of a suite's results. Without a further setting it has a
// bar for each case and implementation.
type chart struct {
	name   string // of the file, behind the suite's; also what tells two of a suite apart
	title  string
	metric string   // what is shown; not for distributions
	cases  []string // some of the suite's; nil means all that were run

	// place, if not nil, makes the chart one of lines: it returns the place of
	// a case on the horizontal axis, which is labelled with axis. Places are
	// logarithmic if log is set.
	place func(c string) float64
	axis  string
	log   bool

	// ratios makes the vertical axis logarithmic: for figures of which the
	// smallest could not be seen beside the largest.
	ratios bool

	// hides are implementations that are not drawn, as their lines lie on another's.
	hides []string

	// samples, if not nil, makes the chart one of distributions: it returns the
	// values of the last measurement, in any order. The chart shows what share
	// is above each, on a logarithmic axis, as the tail is of interest.
	samples func(c, impl string) []float64
	unit    string
}

// colors tell the implementations apart: ours stands out.
var colors = map[string]color.Color{
	ours:      color.RGBA{0x0b, 0x6b, 0xcb, 0xff},
	kcpGo:     color.RGBA{0xe0, 0x7b, 0x39, 0xff},
	quicGo:    color.RGBA{0x8e, 0x6b, 0xbf, 0xff},
	kernelTCP: color.RGBA{0x4f, 0x9d, 0x69, 0xff},
	bareUDP:   color.RGBA{0x9a, 0xa0, 0xa6, 0xff},
}

// moreColors are for implementations that colors does not name.
var moreColors = []color.Color{
	color.RGBA{0xc4, 0x4e, 0x52, 0xff}, color.RGBA{0x55, 0xa8, 0xa8, 0xff},
	color.RGBA{0xb8, 0x9b, 0x3e, 0xff}, color.RGBA{0x5f, 0x6a, 0x8c, 0xff},
	color.RGBA{0x2f, 0x4b, 0x2a, 0xff}, color.RGBA{0xd9, 0x8c, 0xb3, 0xff},
}

func colorOf(impl string, all []string) color.Color {
	if c, ok := colors[impl]; ok {
		return c
	}
	return moreColors[max(0, slices.Index(all, impl))%len(moreColors)]
}

// drawCharts writes the charts of s to a folder and returns their files.
func drawCharts(dir string, s *suite, p plan, results map[string]series) ([]string, error) {
	var files []string
	for _, c := range s.charts {
		pic, err := c.plot(s, p, results)
		if err != nil {
			return nil, fmt.Errorf("%s: chart %s: %w", s.name, c.name, err)
		}
		if pic == nil {
			continue
		}
		name := s.name + "-" + c.name + ".svg"
		if err := pic.write(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
		files = append(files, name)
	}
	return files, nil
}

// plot draws c, or returns nil if nothing of it was measured.
func (c *chart) plot(s *suite, p plan, results map[string]series) (*picture, error) {
	cases := p.cases
	if c.cases != nil {
		cases = slices.DeleteFunc(slices.Clone(c.cases), func(name string) bool {
			return !slices.Contains(p.cases, name)
		})
	}
	if len(cases) == 0 {
		return nil, nil
	}
	p.impls = slices.DeleteFunc(slices.Clone(p.impls), func(impl string) bool { return slices.Contains(c.hides, impl) })
	pic := newPicture(c.title)
	switch {
	case c.samples != nil:
		return pic, c.distributions(pic, s, p, cases)
	case c.place != nil:
		return pic, c.lines(pic, s, p, cases, results)
	}
	return pic, c.bars(pic, s, p, cases, results)
}

// bars draws a group of bars for each case, each with its figure above.
func (c *chart) bars(pic *picture, s *suite, p plan, cases []string, results map[string]series) error {
	slot := (chartWidth - 3*vg.Centimeter) / vg.Length(len(cases))
	width := min(slot*8/10/vg.Length(len(p.impls)), 1.4*vg.Centimeter)
	all := &bars{width: width}
	for i, name := range cases {
		impls := slices.DeleteFunc(slices.Clone(p.impls), func(impl string) bool {
			return !s.hasFigure(name, impl, c.metric)
		})
		for j, impl := range impls {
			values := results[name].values(impl, c.metric)
			all.add(bar{
				at: float64(i), offset: width * vg.Length(2*j-len(impls)+1) / 2, color: colorOf(impl, s.impls),
				height: median(values), low: slices.Min(values), high: slices.Max(values),
			})
		}
	}
	for _, impl := range p.impls {
		if slices.ContainsFunc(cases, func(name string) bool { return s.hasFigure(name, impl, c.metric) }) {
			pic.entry(impl, colorOf(impl, s.impls))
		}
	}
	pic.Add(all)
	pic.NominalX(cases...)
	pic.X.Min, pic.X.Max = -0.5, float64(len(cases))-0.5
	all.factor = pic.vertical(c, s.unitOf(cases[0], c.metric), all.least, all.most)
	return nil
}

// lines draws a line for each implementation over the places of the cases.
func (c *chart) lines(pic *picture, s *suite, p plan, cases []string, results map[string]series) error {
	var ticks []plot.Tick
	for _, name := range cases {
		x := c.place(name)
		label := fmt.Sprintf("%g", x)
		if c.log {
			x = math.Log2(x)
		}
		ticks = append(ticks, plot.Tick{Value: x, Label: label})
	}
	least, most := math.Inf(1), 0.0
	for _, impl := range p.impls {
		var points plotter.XYs
		for i, name := range cases {
			if s.hasFigure(name, impl, c.metric) {
				v := median(results[name].values(impl, c.metric))
				points = append(points, plotter.XY{X: ticks[i].Value, Y: v})
				least, most = min(least, v), max(most, v)
			}
		}
		if err := pic.line(impl, colorOf(impl, s.impls), points, true); err != nil {
			return err
		}
	}
	pic.X.Tick.Marker = plot.ConstantTicks(ticks)
	pic.X.Label.Text = c.axis
	pic.vertical(c, s.unitOf(cases[0], c.metric), least, most)
	return nil
}

// distributions draws the share of values above each, one line for each
// implementation, and for each case if there are several.
func (c *chart) distributions(pic *picture, s *suite, p plan, cases []string) error {
	rest := 0.1 // the smallest share that is shown
	for _, name := range cases {
		for _, impl := range p.impls {
			v := c.samples(name, impl)
			if len(v) == 0 {
				continue
			}
			label := impl
			if len(cases) > 1 {
				label += ", " + name
			}
			points := tail(v)
			rest = min(rest, points[len(points)-1].Y)
			if err := pic.line(label, colorOf(impl, s.impls), points, false); err != nil {
				return err
			}
		}
	}
	var ticks []plot.Tick
	for share, label := 1.0, 0; share >= rest; share, label = share/10, label+1 {
		ticks = append(ticks, plot.Tick{Value: share, Label: []string{"all", "10 %", "1 %", "0.1 %", "0.01 %", "0.001 %"}[min(label, 5)]})
	}
	pic.Y.Scale, pic.Y.Tick.Marker = plot.LogScale{}, plot.ConstantTicks(ticks)
	pic.Y.Min, pic.Y.Max = rest, 1
	pic.X.Min = 0
	pic.X.Tick.Marker = figures10{1}
	pic.X.Label.Text = c.unit
	pic.Y.Label.Text = "take longer"
	return nil
}

// tail returns what share of the values is above each, without the last few, of
// which there are too few to say.
func tail(values []float64) plotter.XYs {
	const steps, few = 400, 5
	v := slices.SortedFunc(slices.Values(values), cmp.Compare[float64])
	decades := math.Log10(max(float64(len(v))/few, 1))
	var points plotter.XYs
	for i := range steps + 1 {
		share := math.Pow(10, -decades*float64(i)/steps)
		at := int((1 - share) * float64(len(v)))
		points = append(points, plotter.XY{X: v[min(at, len(v)-1)], Y: share})
	}
	return points
}
