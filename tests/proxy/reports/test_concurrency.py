"""The number of concurrent reports is limited, so that they do not delay streams."""

import threading
from concurrent.futures import ThreadPoolExecutor

from django.test import RequestFactory
from rest_framework.response import Response

from proxy.reports.core.base_views import MAX_CONCURRENT_REPORTS, ReportView

REQUESTS = 3 * MAX_CONCURRENT_REPORTS


class SlowView(ReportView):
    authentication_classes = ()
    permission_classes = ()
    throttle_classes = ()
    # blocks until this many requests run at once
    barrier = threading.Barrier(MAX_CONCURRENT_REPORTS)
    lock = threading.Lock()
    inside = maximum = 0

    def get(self, request):
        with self.lock:
            SlowView.inside += 1
            SlowView.maximum = max(self.maximum, self.inside)
        self.barrier.wait(60)
        with self.lock:
            SlowView.inside -= 1
        return Response({})


def test_at_most_max_concurrent_reports_are_computed_at_once():
    view = SlowView.as_view()
    with ThreadPoolExecutor(REQUESTS) as pool:
        futures = [pool.submit(view, RequestFactory().get("/")) for _ in range(REQUESTS)]
        statuses = [future.result(120).status_code for future in futures]

    assert statuses == [200] * REQUESTS
    assert SlowView.maximum == MAX_CONCURRENT_REPORTS
