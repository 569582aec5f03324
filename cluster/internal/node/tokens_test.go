package node

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/apiserver"
)

// KON-042 EXT-022: a token in a volume is renewed before it expires, for the same audience and Pod, and the container finds the new one.
func TestTokenIsRenewed(t *testing.T) {
	// Less than the flag allows. The node renews it at four fifths of its life, or up to 10 seconds sooner: a slow one has time left.
	f := newFixture(t, func(c *apiserver.Config) { c.Authentication.Accounts.MaxExpiration = 30 * time.Second })
	f.start(f.options("tokens"))
	f.readyNode("tokens")
	f.createPod("tokens", "main", func(s *corev1.PodSpec) {
		s.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
			ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault", Path: "token", ExpirationSeconds: ptr.To[int64](600)},
		}}}}}}
		s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "token", MountPath: "/tokens"}}
	})
	file := hostPath(t, f.configsOf(f.runningPod("main"))[0], "/tokens/token")
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	expires, looked := expiry(t, first), time.Time{}
	f.eventually("another token takes its place, and is good", func(ctx context.Context) bool {
		now := time.Now()
		if now.Sub(looked) > time.Second/2 { // a Pod that changes is looked at, as each is from time to time
			looked = now
			change := []byte(`{"metadata": {"annotations": {"looked": "` + now.String() + `"}}}`)
			if _, err := f.kube.CoreV1().Pods("default").Patch(ctx, "main", types.MergePatchType, change, metav1.PatchOptions{}); err != nil {
				return false
			}
		}
		next, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		if string(next) == string(first) {
			if now.After(expires) {
				t.Fatal("the token has expired, and is still there")
			}
			return false
		}
		review, err := f.kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: string(next), Audiences: []string{"vault"}},
		}, metav1.CreateOptions{})
		return err == nil && review.Status.Authenticated && review.Status.User.Extra["authentication.kubernetes.io/pod-name"][0] == "main"
	})
}

// expiry is when a token is no longer good.
func expiry(t *testing.T, token []byte) time.Time {
	t.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(string(token)+"..", ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct{ Exp int64 }
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	return time.Unix(claims.Exp, 0)
}
