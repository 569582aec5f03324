package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// benchReport holds the results of a benchmark.
type benchReport []*row

// row is one metric with one protocol. Its values are keyed by subject: "ours" for Trellis, "reference", and
// the baselines. -1 means that the tunnel stopped moving data.
type row struct {
	Metric   string               `json:"metric"`
	Unit     string               `json:"unit"`
	Protocol string               `json:"protocol"`
	Medians  map[string]float64   `json:"medians"`
	Rounds   map[string][]float64 `json:"rounds"`
}

// add adds a result. A result without a protocol is added to the rows of all protocols.
func (r *benchReport) add(subject subject, sample sample, protocols []string) {
	if subject.protocol != "" || len(protocols) == 0 {
		protocols = []string{subject.protocol}
	}
	for _, protocol := range protocols {
		i := slices.IndexFunc(*r, func(row *row) bool {
			return row.Metric == sample.metric && row.Protocol == protocol
		})
		if i < 0 {
			i = len(*r)
			*r = append(*r, &row{sample.metric, sample.unit, protocol, map[string]float64{}, map[string][]float64{}})
		}
		row := (*r)[i]
		row.Rounds[subject.name] = append(row.Rounds[subject.name], sample.value)
		// stopped (-1) sorts before all other values, so the median is stopped if most rounds have stopped.
		sorted := slices.Sorted(slices.Values(row.Rounds[subject.name]))
		row.Medians[subject.name] = sorted[(len(sorted)-1)/2]
	}
}

// table writes the medians as a table.
func (r *benchReport) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, strings.ToUpper("metric\tunit\tprotocol\t"+strings.Join(columns, "\t")+"\tours/reference"))
	for _, row := range *r {
		fmt.Fprintf(t, "%s\t%s\t%s", row.Metric, row.Unit, row.Protocol)
		for _, column := range columns {
			text := "-"
			if v, measured := row.Medians[column]; measured {
				text = number(v)
			}
			fmt.Fprint(t, "\t", text)
		}
		ratio := "-"
		if a, b := row.Medians[columns[0]], row.Medians[columns[1]]; a > 0 && b > 0 {
			ratio = number(a / b)
		}
		fmt.Fprint(t, "\t", ratio, "\n")
	}
	return t.Flush()
}

func number(v float64) string {
	if v == stopped {
		return "stopped"
	}
	return fmt.Sprintf("%.4g", v)
}
