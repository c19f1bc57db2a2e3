package main

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	chartWidth  = 17 * vg.Centimeter
	chartHeight = 9 * vg.Centimeter
	chartMargin = 4 * vg.Millimeter // around all
	legendRow   = 5 * vg.Millimeter // height of a row of the legend
	labelSize   = 7                 // of the figures above bars, in points
)

// picture is a plot with its legend in rows above, where it hides nothing.
type picture struct {
	*plot.Plot
	legend []legendEntry
}

// legendEntry is the name of an implementation with its colour.
type legendEntry struct {
	name  string
	color color.Color
}

// newPicture returns an empty picture in the style of all.
func newPicture(title string) *picture {
	pic := plot.New()
	pic.Title.Text = title
	pic.Title.Padding = 3 * vg.Millimeter
	for _, style := range []*font.Font{
		&pic.Title.TextStyle.Font, &pic.X.Label.TextStyle.Font, &pic.Y.Label.TextStyle.Font,
		&pic.X.Tick.Label.Font, &pic.Y.Tick.Label.Font,
	} {
		style.Variant = "Sans"
		style.Size = 9
	}
	pic.Title.TextStyle.Font.Size = 11
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	grid.Horizontal.Color = color.Gray{0xdd}
	pic.Add(grid)
	return &picture{Plot: pic}
}

// entry adds an implementation to the legend.
func (p *picture) entry(name string, ink color.Color) {
	p.legend = append(p.legend, legendEntry{name, ink})
}

// line adds a line and its entry in the legend, with its points if dots is set.
// It does nothing without points.
func (p *picture) line(name string, ink color.Color, points plotter.XYs, dots bool) error {
	if len(points) == 0 {
		return nil
	}
	line, scatter, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.Color, line.Width = ink, 2
	scatter.Color, scatter.Shape, scatter.Radius = ink, draw.CircleGlyph{}, 3
	p.Add(line)
	if dots {
		p.Add(scatter)
	}
	p.entry(name, ink)
	return nil
}

// vertical sets the vertical axis of a chart of figures between least and most.
// It returns by what a figure has to be multiplied to be in the axis' unit.
func (p *picture) vertical(c *chart, unit string, least, most float64) (factor float64) {
	most = max(most, 1e-9)
	factor, unit = largerUnit(unit, most)
	p.Y.Tick.Marker = figures10{factor}
	p.Y.Min, p.Y.Max = 0, most*1.12 // room for the figure above the highest bar
	if c.ratios && least > 0 {
		p.Y.Scale = plot.LogScale{}
		p.Y.Tick.Marker = powers{factor}
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(least))), most*2
	}
	p.Y.Label.Text = c.metric + ", " + unit
	return factor
}

// largerUnit returns a unit in which figures up to most are easy to read, and how
// much of it one of the given unit is.
func largerUnit(unit string, most float64) (factor float64, larger string) {
	switch {
	case unit == "MB/s" && most >= 1000:
		return 1e-3, "GB/s"
	case unit == "bytes" && most >= 1e6:
		return 1e-6, "MB"
	case unit == "bytes" && most >= 1e4:
		return 1e-3, "kB"
	case unit == "per second" && most >= 1e4:
		return 1e-3, "thousands a second"
	case unit == "ns" && most >= 1e4:
		return 1e-3, "µs"
	}
	return 1, unit
}

// figures10 marks an axis with few round figures, in a unit of which the axis' own
// is factor.
type figures10 struct{ factor float64 }

// Ticks implements plot.Ticker.
func (f figures10) Ticks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = tickLabel(ticks[i].Value * f.factor)
		}
	}
	return ticks
}

// tickLabel returns a number as the label of an axis.
func tickLabel(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

// powers marks a logarithmic axis at the powers of ten.
type powers struct{ factor float64 }

// Ticks implements plot.Ticker.
func (f powers) Ticks(low, high float64) (ticks []plot.Tick) {
	for v := math.Pow(10, math.Floor(math.Log10(low))); v <= high; v *= 10 {
		if v >= low {
			ticks = append(ticks, plot.Tick{Value: v, Label: tickLabel(v * f.factor)})
		}
		for i := 2.0; i < 10 && i*v <= high; i++ {
			if i*v >= low {
				ticks = append(ticks, plot.Tick{Value: i * v})
			}
		}
	}
	return ticks
}

// bars is what a chart of bars draws: all bars first, then what shows their
// range, then the figures, so that none hides another.
type bars struct {
	width       vg.Length
	all         []bar
	least, most float64 // of all heights
	factor      float64 // of the figures above the bars
}

// bar is one figure.
type bar struct {
	at                float64 // place on the horizontal axis
	offset            vg.Length
	height, low, high float64
	color             color.Color
}

func (b *bars) add(x bar) {
	if len(b.all) == 0 {
		b.least = x.height
	}
	b.least, b.most = min(b.least, x.height), max(b.most, x.height, x.high)
	b.all = append(b.all, x)
}

// Plot implements plot.Plotter.
func (b *bars) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	for _, x := range b.all {
		left, right := toX(x.at)+x.offset-b.width/2, toX(x.at)+x.offset+b.width/2
		bottom, top := toY(p.Y.Min), toY(max(x.height, p.Y.Min))
		c.FillPolygon(x.color, []vg.Point{{X: left, Y: bottom}, {X: right, Y: bottom}, {X: right, Y: top}, {X: left, Y: top}})
	}
	for _, x := range b.all {
		if x.high > x.low && x.low > p.Y.Min {
			middle, low, high := toX(x.at)+x.offset, toY(x.low), toY(x.high)
			style := draw.LineStyle{Color: color.Gray{0x33}, Width: vg.Points(0.7)}
			c.StrokeLine2(style, middle, low, middle, high)
			c.StrokeLine2(style, middle-2, low, middle+2, low)
			c.StrokeLine2(style, middle-2, high, middle+2, high)
		}
	}
	style := p.X.Tick.Label
	style.Font.Size = labelSize
	style.XAlign, style.YAlign = draw.XCenter, draw.YBottom
	if b.width < 4*labelSize { // too narrow for a figure
		style.Rotation = math.Pi / 2
		style.XAlign, style.YAlign = draw.XLeft, draw.YCenter
	}
	for _, x := range b.all {
		at := vg.Point{X: toX(x.at) + x.offset, Y: toY(max(x.height, x.high, p.Y.Min)) + vg.Millimeter}
		c.FillText(style, at, figure(x.height*b.factor))
	}
}

// figure returns a number as a bar's label.
func figure(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// write writes the picture to a file, as SVG.
func (p *picture) write(name string) (err error) {
	canvas := vgsvg.New(chartWidth, chartHeight)
	all := draw.New(canvas)
	all.FillPolygon(color.White, []vg.Point{{}, {X: chartWidth}, {X: chartWidth, Y: chartHeight}, {Y: chartHeight}})
	inner := draw.Crop(all, chartMargin, -chartMargin, chartMargin, -chartMargin)
	p.BackgroundColor = nil
	rows := p.drawLegend(inner)
	p.Draw(draw.Crop(inner, 0, 0, 0, -vg.Length(rows)*legendRow-2*vg.Millimeter))
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

// drawLegend draws the legend at the top, from left to right, and returns how
// many rows it takes. Names have room for a font that is wider than the one
// measured here.
func (p *picture) drawLegend(c draw.Canvas) (rows int) {
	const side, gap, wider = 3 * vg.Millimeter, 2 * vg.Millimeter, 1.25
	style := p.X.Label.TextStyle
	style.XAlign, style.YAlign = draw.XLeft, draw.YCenter
	x := c.Min.X
	for _, e := range p.legend {
		width := side + gap + wider*style.Width(e.name) + 2*gap
		if rows == 0 || x+width > c.Max.X {
			x, rows = c.Min.X, rows+1
		}
		y := c.Max.Y - vg.Length(rows)*legendRow + legendRow/2
		c.FillPolygon(e.color, []vg.Point{
			{X: x, Y: y - side/2}, {X: x + side, Y: y - side/2}, {X: x + side, Y: y + side/2}, {X: x, Y: y + side/2},
		})
		c.FillText(style, vg.Point{X: x + side + gap, Y: y}, e.name)
		x += width
	}
	return rows
}
