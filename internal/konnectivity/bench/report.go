package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Report is what has been measured.
type Report []*Row

// Row is one metric with one protocol, or with none where there was no tunnel. Its values are by what was measured (ours,
// reference, …); -1 stands for a tunnel that stood still.
type Row struct {
	Metric   string               `json:"metric"`
	Unit     string               `json:"unit"`
	Protocol string               `json:"protocol,omitempty"`
	Medians  map[string]float64   `json:"medians"`
	Rounds   map[string][]float64 `json:"rounds"`
}

func (r *Report) add(sub subject, s sample) {
	row := r.row(s.metric, sub.protocol)
	if row == nil {
		row = &Row{s.metric, s.unit, sub.protocol, map[string]float64{}, map[string][]float64{}}
		*r = append(*r, row)
	}
	row.Rounds[sub.name] = append(row.Rounds[sub.name], s.value)
	sorted := slices.Sorted(slices.Values(row.Rounds[sub.name])) // those that stopped first: the median has if most have
	row.Medians[sub.name] = sorted[(len(sorted)-1)/2]
}

// row finds a row; nil if there is none.
func (r *Report) row(metric, protocol string) *Row {
	i := slices.IndexFunc(*r, func(row *Row) bool { return row.Metric == metric && row.Protocol == protocol })
	if i < 0 {
		return nil
	}
	return (*r)[i]
}

// Table writes the medians for people. What needs no tunnel stands in the rows of each protocol.
func (r *Report) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, strings.ToUpper("metric\tunit\tprotocol\tours/reference\t"+strings.Join(columns, "\t")))
	for _, row := range *r {
		if row.Protocol == "" {
			continue
		}
		ratio := "-"
		if a, b := row.Medians[columns[0]], row.Medians[columns[1]]; a > 0 && b > 0 {
			ratio = number(a / b)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s", row.Metric, row.Unit, row.Protocol, ratio)
		for _, column := range columns {
			v, measured := row.Medians[column]
			if floor := r.row(row.Metric, ""); !measured && floor != nil {
				v, measured = floor.Medians[column]
			}
			text := "-"
			if measured {
				text = number(v)
			}
			fmt.Fprintf(t, "\t%s", text)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// number has three digits that count.
func number(v float64) string {
	if v == stopped {
		return "stopped"
	}
	digits := 0
	for size := math.Abs(v); size < 100 && digits < 3; size *= 10 {
		digits++
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}
