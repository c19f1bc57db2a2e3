package main

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
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
	// logarithmic where log is set.
	place func(c string) float64
	axis  string
	log   bool

	// samples, if not nil, makes the chart one of distributions: it returns the
	// values of the last measurement, in any order, of which the chart shows
	// what share is below each. Up to a share of quantile; 0 means all.
	samples  func(c, impl string) []float64
	quantile float64
	unit     string
}

// colors tell the implementations apart: ours stands out.
var colors = map[string]color.Color{
	ours:      color.RGBA{0x0b, 0x6b, 0xcb, 0xff},
	kcpGo:     color.RGBA{0xe0, 0x7b, 0x39, 0xff},
	quicGo:    color.RGBA{0x8e, 0x6b, 0xbf, 0xff},
	kernelTCP: color.RGBA{0x4f, 0x9d, 0x69, 0xff},
	bareUDP:   color.RGBA{0x9a, 0xa0, 0xa6, 0xff},
}

// moreColors are those of implementations that colors does not name.
var moreColors = []color.Color{
	color.RGBA{0xc4, 0x4e, 0x52, 0xff}, color.RGBA{0x55, 0xa8, 0xa8, 0xff},
	color.RGBA{0xb8, 0x9b, 0x3e, 0xff}, color.RGBA{0x5f, 0x6a, 0x8c, 0xff},
}

func colorOf(impl string, all []string) color.Color {
	if c, ok := colors[impl]; ok {
		return c
	}
	return moreColors[max(0, slices.Index(all, impl))%len(moreColors)]
}

const (
	chartWidth  = 17 * vg.Centimeter
	chartHeight = 8 * vg.Centimeter
)

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
		if err := writeSVG(filepath.Join(dir, name), pic); err != nil {
			return nil, err
		}
		files = append(files, name)
	}
	return files, nil
}

// plot draws c, or returns nil where nothing of it was measured.
func (c *chart) plot(s *suite, p plan, results map[string]series) (*plot.Plot, error) {
	cases := p.cases
	if c.cases != nil {
		cases = slices.DeleteFunc(slices.Clone(c.cases), func(name string) bool {
			return !slices.Contains(p.cases, name)
		})
	}
	if len(cases) == 0 {
		return nil, nil
	}
	pic := newPicture(c.title)
	switch {
	case c.samples != nil:
		return pic, c.distributions(pic, s, p, cases)
	case c.place != nil:
		return pic, c.lines(pic, s, p, cases, results)
	}
	return pic, c.bars(pic, s, p, cases, results)
}

// newPicture returns an empty plot in the style of all.
func newPicture(title string) *plot.Plot {
	pic := plot.New()
	pic.BackgroundColor = color.White
	pic.Title.Text = title
	pic.Title.Padding = 3 * vg.Millimeter
	for _, style := range []*font.Font{
		&pic.Title.TextStyle.Font, &pic.X.Label.TextStyle.Font, &pic.Y.Label.TextStyle.Font,
		&pic.X.Tick.Label.Font, &pic.Y.Tick.Label.Font, &pic.Legend.TextStyle.Font,
	} {
		style.Variant = "Sans"
		style.Size = 9
	}
	pic.Title.TextStyle.Font.Size = 11
	pic.Legend.Top = true
	pic.Legend.ThumbnailWidth = 4 * vg.Millimeter
	pic.Legend.Padding = 1 * vg.Millimeter
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	grid.Horizontal.Color = color.Gray{0xdd}
	pic.Add(grid)
	return pic
}

// bars draws a group of bars for each case, each with its figure above.
func (c *chart) bars(pic *plot.Plot, s *suite, p plan, cases []string, results map[string]series) error {
	slot := (chartWidth - 3*vg.Centimeter) / vg.Length(len(cases))
	width := min(slot*8/10/vg.Length(len(p.impls)), 1.4*vg.Centimeter)
	top := 0.0
	for _, name := range cases {
		var impls []string
		for _, impl := range p.impls {
			if s.hasFigure(name, impl, c.metric) {
				impls = append(impls, impl)
			}
		}
		for i, impl := range impls {
			v := median(results[name].values(impl, c.metric))
			top = max(top, v)
			bar, err := plotter.NewBarChart(plotter.Values{v}, width)
			if err != nil {
				return err
			}
			bar.Color = colorOf(impl, s.impls)
			bar.LineStyle.Width = 0
			bar.XMin = float64(slices.Index(cases, name))
			bar.Offset = width * vg.Length(2*i-len(impls)+1) / 2
			pic.Add(bar)
			if err := addLabel(pic, bar.XMin, v, bar.Offset); err != nil {
				return err
			}
		}
	}
	for _, impl := range p.impls {
		if slices.ContainsFunc(cases, func(name string) bool { return s.hasFigure(name, impl, c.metric) }) {
			pic.Legend.Add(impl, swatch{colorOf(impl, s.impls)})
		}
	}
	pic.NominalX(cases...)
	pic.X.Min, pic.X.Max = -0.5, float64(len(cases))-0.5
	pic.Y.Min, pic.Y.Max = 0, max(top, 1e-9)*1.25 // room for the legend
	pic.Y.Label.Text = c.metric + ", " + s.unitOf(cases[0], c.metric)
	return nil
}

// addLabel writes a figure above its bar.
func addLabel(pic *plot.Plot, x, v float64, offset vg.Length) error {
	label := fmt.Sprintf("%.3g", v)
	if v >= 100 {
		label = fmt.Sprintf("%.0f", v)
	}
	l, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: x, Y: v}}, Labels: []string{label}})
	if err != nil {
		return err
	}
	l.TextStyle[0].Font.Variant = "Sans"
	l.TextStyle[0].Font.Size = 7
	l.TextStyle[0].XAlign = draw.XCenter
	l.Offset = vg.Point{X: offset, Y: 1 * vg.Millimeter}
	pic.Add(l)
	return nil
}

// swatch is a square of a colour in the legend.
type swatch struct{ color color.Color }

func (s swatch) Thumbnail(c *draw.Canvas) {
	r := c.Rectangle
	c.FillPolygon(s.color, []vg.Point{r.Min, {X: r.Max.X, Y: r.Min.Y}, r.Max, {X: r.Min.X, Y: r.Max.Y}})
}

// lines draws a line for each implementation over the places of the cases.
func (c *chart) lines(pic *plot.Plot, s *suite, p plan, cases []string, results map[string]series) error {
	var ticks []plot.Tick
	for _, name := range cases {
		x := c.place(name)
		label := fmt.Sprintf("%g", x)
		if c.log {
			x = math.Log2(x)
		}
		ticks = append(ticks, plot.Tick{Value: x, Label: label})
	}
	top := 0.0
	for _, impl := range p.impls {
		var points plotter.XYs
		for i, name := range cases {
			if s.hasFigure(name, impl, c.metric) {
				v := median(results[name].values(impl, c.metric))
				points = append(points, plotter.XY{X: ticks[i].Value, Y: v})
				top = max(top, v)
			}
		}
		if len(points) == 0 {
			continue
		}
		if err := addLine(pic, impl, colorOf(impl, s.impls), points, true); err != nil {
			return err
		}
	}
	pic.X.Tick.Marker = plot.ConstantTicks(ticks)
	pic.X.Label.Text = c.axis
	pic.Y.Min, pic.Y.Max = 0, max(top, 1e-9)*1.25
	pic.Y.Label.Text = c.metric + ", " + s.unitOf(cases[0], c.metric)
	return nil
}

// addLine adds a line to the plot and its legend, with its points if dots is
// set.
func addLine(pic *plot.Plot, name string, ink color.Color, points plotter.XYs, dots bool) error {
	line, scatter, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.Color, line.Width = ink, 2
	scatter.Color, scatter.Shape, scatter.Radius = ink, draw.CircleGlyph{}, 3
	pic.Add(line)
	if dots {
		pic.Add(scatter)
	}
	pic.Legend.Add(name, line)
	return nil
}

// distributions draws the share of values below each, one line for each
// implementation, and for each case where there are several.
func (c *chart) distributions(pic *plot.Plot, s *suite, p plan, cases []string) error {
	const steps = 400
	for _, name := range cases {
		for _, impl := range p.impls {
			v := slices.Sorted(slices.Values(c.samples(name, impl)))
			if len(v) == 0 {
				continue
			}
			limit := c.quantile
			if limit == 0 {
				limit = 1
			}
			var points plotter.XYs
			for i := range steps + 1 {
				q := limit * float64(i) / steps
				points = append(points, plotter.XY{X: v[min(int(q*float64(len(v))), len(v)-1)], Y: 100 * q})
			}
			label := impl
			if len(cases) > 1 {
				label += ", " + name
			}
			if err := addLine(pic, label, colorOf(impl, s.impls), points, false); err != nil {
				return err
			}
		}
	}
	pic.Legend.Top = false
	pic.X.Label.Text = c.unit
	pic.Y.Label.Text = "% at most"
	return nil
}

// writeSVG writes a picture to a file.
func writeSVG(name string, pic *plot.Plot) (err error) {
	canvas := vgsvg.New(chartWidth, chartHeight)
	pic.Draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	// Few readers have this font.
	svg := strings.ReplaceAll(b.String(), "font-family:Liberation Sans", "font-family:Liberation Sans,Helvetica,Arial,sans-serif")
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(svg)
	return err
}
