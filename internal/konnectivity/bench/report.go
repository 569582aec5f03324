package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Report is what has been measured.
type Report []*Row

// Row is one metric with one protocol. Its values are by what was measured (ours,
// reference, …); -1 stands for a tunnel that stood still.
type Row struct {
	Metric   string               `json:"metric"`
	Unit     string               `json:"unit"`
	Protocol string               `json:"protocol"`
	Medians  map[string]float64   `json:"medians"`
	Rounds   map[string][]float64 `json:"rounds"`
}

// add adds a number; what needs no tunnel stands beside each protocol.
func (r *Report) add(sub subject, s sample, protocols []string) {
	if sub.protocol != "" || len(protocols) == 0 {
		protocols = []string{sub.protocol}
	}
	for _, protocol := range protocols {
		i := slices.IndexFunc(*r, func(row *Row) bool { return row.Metric == s.metric && row.Protocol == protocol })
		if i < 0 {
			i = len(*r)
			*r = append(*r, &Row{s.metric, s.unit, protocol, map[string]float64{}, map[string][]float64{}})
		}
		row := (*r)[i]
		row.Rounds[sub.name] = append(row.Rounds[sub.name], s.value)
		sorted := slices.Sorted(slices.Values(row.Rounds[sub.name])) // what stopped comes first: the median has if most have
		row.Medians[sub.name] = sorted[(len(sorted)-1)/2]
	}
}

// Table writes the medians for people.
func (r *Report) Table(w io.Writer) error {
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
