package health

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/api/request"
)

// Check is a named health check.
type Check struct {
	Name string
	Run  func() error
}

// checks returns the checks of healthz, livez or readyz.
func (n *Handler) checks(name string) []Check {
	all := []Check{{Name: "ping", Run: func() error { return nil }}}
	if name == "readyz" {
		return append(all, n.Readyz...)
	}
	return append(all, n.Livez...)
}

// names returns the names of a check at healthz, livez or readyz. The storage check also has upstream's names.
func (c *Check) names(at string) []string {
	switch {
	case c.Name != "storage":
		return []string{c.Name}
	case at == "readyz":
		return []string{"etcd", "etcd-readiness", c.Name}
	}
	return []string{"etcd", c.Name}
}

// serveHealth serves one health check or all of them, with upstream's messages.
func (n *Handler) serveHealth(w http.ResponseWriter, q *request.Request, name string) {
	checks := n.checks(name)
	if single, ok := strings.CutPrefix(q.R.URL.Path, "/"+name+"/"); ok { // no check has the name ""
		serveCheck(w, q.R, checks, name, single)
		return
	}
	query := q.Query()
	excluded := query["exclude"]
	unknown := slices.Clone(excluded)
	var out bytes.Buffer
	failed := false
	for _, c := range checks {
		names := c.names(name)
		skip := slices.ContainsFunc(names, func(n string) bool { return slices.Contains(excluded, n) })
		unknown = slices.DeleteFunc(unknown, func(n string) bool { return slices.Contains(names, n) })
		sign, result := '+', "ok"
		if skip {
			result = "excluded: ok"
		} else if c.Run() != nil {
			failed = true
			sign, result = '-', "failed: reason withheld"
		}
		for _, n := range names {
			fmt.Fprintf(&out, "[%c]%s %s\n", sign, n, result)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		for i, u := range slices.Compact(unknown) {
			unknown[i] = fmt.Sprintf("%q", u)
		}
		fmt.Fprintf(&out, "warn: some health checks cannot be excluded: no matches for %s\n",
			strings.Join(slices.Compact(unknown), ","))
	}
	if failed {
		http.Error(w, out.String()+name+" check failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, verbose := query["verbose"]; !verbose {
		fmt.Fprint(w, "ok")
		return
	}
	fmt.Fprintf(w, "%s%s check passed\n", out.String(), name)
}

func serveCheck(w http.ResponseWriter, r *http.Request, checks []Check, at, name string) {
	for _, c := range checks {
		if !slices.Contains(c.names(at), name) {
			continue
		}
		if err := c.Run(); err != nil {
			http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "ok")
		return
	}
	http.NotFound(w, r)
}
