package credentials

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd/api"
)

// ForConversion reads the kubeconfig for conversion webhooks. The credentials of a user apply only to the webhook
// whose host, or host and port, is the user's name. A webhook called by URL receives only a client certificate:
// the author of a CRD chooses the URL, and could otherwise collect tokens and passwords. If file is "",
// ForConversion returns nil. The warnings list the users whose credentials can never apply. If this is true of all
// users, ForConversion returns an error.
func ForConversion(file string) (s *Source, warnings []string, err error) {
	if file == "" {
		return nil, nil, nil
	}
	if s, err = read(file); err != nil {
		return nil, nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	s.conversion = true
	applies := false
	for _, name := range slices.Sorted(maps.Keys(s.users)) {
		warning, unused := review(name, s.users[name])
		if warning != "" {
			warnings = append(warnings, fmt.Sprintf("user %q: %s", name, warning))
		}
		applies = applies || !unused
	}
	if !applies {
		problems := errors.New("no user has credentials that apply to a conversion webhook")
		for _, w := range warnings {
			problems = fmt.Errorf("%w; %s", problems, w)
		}
		return nil, nil, fmt.Errorf("kubeconfig %s: %w", file, problems)
	}
	return s, warnings, nil
}

// review checks whether the credentials of a user can apply to conversion webhooks. If some cannot, it returns a
// warning. unused reports that none can.
func review(name string, user *api.AuthInfo) (warning string, unused bool) {
	headers := user.Token != "" || user.TokenFile != "" || user.Username != "" || user.Password != "" ||
		user.Impersonate != ""
	certificate := hasCertificate(user) || user.Exec != nil
	service := strings.HasSuffix(hostOf(name), ".svc")
	switch {
	case wildcard(name):
		return "ignored: a wildcard does not apply to conversion webhooks (use the exact host name)", true
	case hostOf(name) == "":
		return "ignored: the name must be the HOST or HOST:PORT of a webhook", true
	case name == "kubernetes.default.svc" || name == "kubernetes.default.svc:443":
		return "ignored: the server uses its own identity for requests to itself", true
	case !headers && !certificate:
		return "ignored: it has no credentials", true
	case headers && !certificate && !service:
		return "ignored: tokens and passwords are sent only to Services (NAME.NAMESPACE.svc), " +
			"so use a client certificate", true
	case headers && !service:
		return "only its client certificate is sent, not its token or password, because " + name +
			" is not a Service", false
	}
	return "", false
}

func wildcard(name string) bool { return strings.Contains(name, "*") }

// hostOf returns the host in a name of the form HOST or HOST:PORT. It returns "" for any other name.
func hostOf(name string) string {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		host, port = name, "443"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return ""
	}
	if net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(strings.ToLower(host))) > 0 {
		return ""
	}
	return host
}
